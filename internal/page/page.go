package page

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"html/template"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/endpoint"
	"github.com/warmpath/warmpath/internal/pause"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A Host is the server that the page shows. The context of a call has its principal.
type Host interface {
	endpoint.Chooser
	GetStatus(context.Context, *warmpathv1.GetStatusRequest) (*warmpathv1.GetStatusResponse, error)
	// Admitted returns an error once the principal of a request may not use the server any more.
	Admitted(*http.Request) error
	// Principal is the name of a request's principal; empty = there are no principals.
	Principal(*http.Request) string
}

// Options configure a [Page].
type Options struct {
	// MaxBody bounds the body of a question, in bytes.
	MaxBody int
	// Until ends when streams are to end.
	Until context.Context
}

// A Page serves the page. Safe for use by many goroutines.
type Page struct {
	host    Host
	options Options
	history history
	mux     *http.ServeMux

	mu        sync.Mutex     // guards following
	following map[string]int // browsers that follow the page, by principal; those without one under ""
	browsers  int            // all of them; guarded by mu
}

// updated is how often a stream looks for changes.
const updated = time.Second

// maxStreams bounds the browsers that follow the page, maxOwnStreams those of one principal: each costs a rendering a
// second.
const maxStreams, maxOwnStreams = 32, 8

//go:embed page.css page.js page.svg
var files embed.FS

//go:embed page.html
var pageText string

var templates = template.Must(Components().Parse(pageText))

// New returns the page of a server.
func New(h Host, o Options) *Page {
	p := &Page{host: h, options: o, mux: http.NewServeMux()}
	p.mux.HandleFunc("GET /{$}", p.show)
	p.mux.HandleFunc("GET /events", p.stream)
	p.mux.Handle("POST /explain", http.NewCrossOriginProtection().Handler(http.HandlerFunc(p.explain)))
	p.mux.Handle("GET /", http.FileServerFS(files))
	return p
}

// Patterns are those of the requests that a page answers, as [http.ServeMux] has them.
var Patterns = []string{"GET /{$}", "GET /events", "POST /explain", "GET /page.css", "GET /page.js", "GET /page.svg"}

// policy is what browsers may load: files of this server.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP implements [http.Handler].
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Content-Security-Policy", policy)
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Referrer-Policy", "no-referrer")
	head.Set("Cross-Origin-Resource-Policy", "same-origin")
	head.Set("Cache-Control", "no-store")
	if rebound(r) {
		http.Error(w, "the page on a loopback address answers to localhost and to IP addresses only", http.StatusForbidden)
		return
	}
	p.mux.ServeHTTP(w, r)
}

// rebound reports whether a request to a loopback address has the name of another host: a site whose DNS points here
// could read the page with it.
func rebound(r *http.Request) bool {
	at, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = strings.Trim(r.Host, "[]")
	}
	_, err = netip.ParseAddr(host)
	return at != nil && at.IP.IsLoopback() && err != nil && host != "localhost"
}

// Deny answers a request that did not pass the authenticator: its error is a status. Browsers ask for a token, which
// is the password; the name does not count.
func Deny(w http.ResponseWriter, err error) {
	if status.Code(err) == codes.Unauthenticated {
		w.Header().Set("WWW-Authenticate", `Basic realm="warmpath: the token as password", charset="UTF-8"`)
	}
	http.Error(w, status.Convert(err).Message(), endpoint.RefusalOf(err).Code)
}

// Record keeps samples for the charts until the context ends.
func (p *Page) Record(ctx context.Context) {
	for range pause.Every(ctx, sampled) {
		if s, err := p.host.GetStatus(ctx, new(warmpathv1.GetStatusRequest)); err == nil {
			p.history.add(s)
		}
	}
}

func (p *Page) look(ctx context.Context) (*view, error) {
	s, err := p.host.GetStatus(ctx, new(warmpathv1.GetStatusRequest))
	if err != nil {
		return nil, err
	}
	return newView(s, &p.history), nil
}

// data is what the template "page" shows.
type data struct {
	Live  *view
	Asked *question
}

func (p *Page) show(w http.ResponseWriter, r *http.Request) {
	p.write(w, r, http.StatusOK, new(question))
}

// write writes the page with a question and its answer.
func (p *Page) write(w http.ResponseWriter, r *http.Request, code int, q *question) {
	v, err := p.look(r.Context())
	if err != nil {
		Deny(w, err)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_ = templates.ExecuteTemplate(w, "page", data{v, q}) // fails only on a connection that is gone
}

// patience is how long a browser may take to read an update.
const patience = 10 * time.Second

// follow counts a browser of a principal, or returns why there may be no more.
func (p *Page) follow(who string) (problem string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.browsers >= maxStreams:
		return fmt.Sprintf("%d browsers follow the page", maxStreams)
	case who != "" && p.following[who] >= maxOwnStreams:
		return fmt.Sprintf("%d browsers of the principal %s follow the page", maxOwnStreams, who)
	}
	if p.following == nil {
		p.following = make(map[string]int)
	}
	p.browsers++
	p.following[who]++
	return ""
}

func (p *Page) unfollow(who string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.browsers--
	if p.following[who]--; p.following[who] == 0 {
		delete(p.following, who)
	}
}

// stream sends the live part whenever it differs, until the browser goes, its principal is removed, or the server is
// done.
func (p *Page) stream(w http.ResponseWriter, r *http.Request) {
	who := p.host.Principal(r)
	if problem := p.follow(who); problem != "" {
		http.Error(w, problem, http.StatusServiceUnavailable)
		return
	}
	defer p.unfollow(who)
	w.Header().Set("Content-Type", "text/event-stream")
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(time.Time{}) // the time to read a request is no bound on its answer
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(p.options.Until, cancel)()
	var last []byte
	for range pause.Every(ctx, updated) {
		next, err := p.update(r)
		if err != nil {
			return
		}
		if !bytes.Equal(next, last) {
			last = next
			_ = conn.SetWriteDeadline(time.Now().Add(patience))
			if _, err := w.Write(event(next)); err != nil || conn.Flush() != nil {
				return
			}
		}
	}
}

// update is the live part for the principal of a request.
func (p *Page) update(r *http.Request) ([]byte, error) {
	if err := p.host.Admitted(r); err != nil {
		return nil, err
	}
	v, err := p.look(r.Context())
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = templates.ExecuteTemplate(&b, "live", v)
	return b.Bytes(), err
}

// event is a text as a server-sent event.
func event(text []byte) []byte {
	lines := bytes.ReplaceAll(text, []byte("\n"), []byte("\ndata: "))
	return append(append([]byte("data: "), lines...), "\n\n"...)
}
