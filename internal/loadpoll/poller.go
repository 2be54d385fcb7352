package loadpoll

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/loadprobe"
	"github.com/warmpath/warmpath/internal/pause"
	"github.com/warmpath/warmpath/internal/router/load"
)

const (
	// atOnce bounds the polls under way of replicas that answered last, and those of all others.
	atOnce     = 64
	maxBackoff = 10 * time.Second
)

// Options are the engines to ask and the receiver of the answers. All but Logger and Sleep are needed; Connect where
// the source is gRPC.
type Options struct {
	Source            Source
	Interval, Timeout time.Duration
	// Connect returns a connection to a replica.
	Connect func(ctx context.Context, id string) (grpc.ClientConnInterface, error)
	// Report is called with each answer, by several goroutines, one at a time for each replica.
	Report func(id string, l load.Report)
	Logger *slog.Logger // nil = slog.Default()
	// Sleep waits until the context ends or the time is over; nil = by the real clock.
	Sleep func(ctx context.Context, d time.Duration)
}

// A Poller polls the replicas of one fleet. Safe for use by many goroutines.
type Poller struct {
	o       Options
	http    *http.Client
	room    chan struct{} // has the polls under way of replicas that answered last
	doubt   chan struct{} // has those of all others, which may take the whole timeout
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
	failed  atomic.Int64

	// mu guards what follows; nothing is locked or called under it.
	mu    sync.Mutex
	fleet map[string]*polled
}

// polled is one replica.
type polled struct {
	id, address string
	cancel      context.CancelFunc
	problem     atomic.Pointer[string]
}

// New returns a Poller without replicas.
func New(o Options) *Poller {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Sleep == nil {
		o.Sleep = func(ctx context.Context, d time.Duration) { _ = pause.For(ctx, d) }
	}
	p := &Poller{
		o: o, http: newHTTPClient(), fleet: make(map[string]*polled),
		room: make(chan struct{}, atOnce), doubt: make(chan struct{}, atOnce),
	}
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p
}

// SetFleet sets the replicas to poll. It does not wait for polls of those that left.
func (p *Poller) SetFleet(fleet []policy.Attributes) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return
	}
	next := make(map[string]*polled, len(fleet))
	for _, a := range fleet {
		x := p.fleet[a.ID]
		if x == nil || x.address != a.Address {
			x = &polled{id: a.ID, address: a.Address}
			var ctx context.Context
			ctx, x.cancel = context.WithCancel(p.ctx)
			p.running.Go(func() { p.follow(ctx, x) })
		}
		next[a.ID] = x
	}
	for id, x := range p.fleet {
		if next[id] != x {
			x.cancel()
		}
	}
	p.fleet = next
}

// Problems returns the errors of replicas that do not answer, by id.
func (p *Poller) Problems() map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[string]string)
	for id, x := range p.fleet {
		if problem := x.problem.Load(); problem != nil {
			all[id] = *problem
		}
	}
	return all
}

// Failed returns the number of failed polls.
func (p *Poller) Failed() int64 { return p.failed.Load() }

// Close ends all polls and waits for them.
func (p *Poller) Close() {
	p.mu.Lock()
	p.stop()
	p.mu.Unlock()
	p.running.Wait()
	p.http.CloseIdleConnections()
}

// follow polls one replica until the context ends, first after a part of the interval.
func (p *Poller) follow(ctx context.Context, x *polled) {
	wait, room := rand.N(p.o.Interval), p.doubt
	for failures := 0; ; {
		p.o.Sleep(ctx, wait)
		l, err := p.ask(ctx, x, room)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			failures, room = 0, p.room
			p.o.Report(x.id, l)
		} else {
			failures, room = failures+1, p.doubt
			p.failed.Add(1)
		}
		p.note(x, err)
		wait = max(min(p.o.Interval<<min(failures, 10), maxBackoff), p.o.Interval)
		wait += rand.N(wait/5+1) - wait/10
	}
}

// ask polls once, as soon as there is room.
func (p *Poller) ask(ctx context.Context, x *polled, room chan struct{}) (load.Report, error) {
	select {
	case room <- struct{}{}:
		defer func() { <-room }()
	case <-ctx.Done():
		return load.Report{}, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, p.o.Timeout)
	defer cancel()
	if p.o.Source.replica != "" {
		conn, err := p.o.Connect(ctx, x.id)
		if err != nil {
			return load.Report{}, err
		}
		return p.o.Source.replica.Ask(ctx, conn)
	}
	page, err := p.o.Source.pageOf(x.id, x.address)
	if err != nil {
		return load.Report{}, err
	}
	return read(ctx, p.http, page)
}

// maxProblem bounds an error that is kept, in bytes.
const maxProblem = 300

// note keeps the error of a replica, and logs it once.
func (p *Poller) note(x *polled, err error) {
	was := x.problem.Load()
	if err == nil {
		if x.problem.Store(nil); was != nil {
			p.o.Logger.Info("warmpath: a replica reports its load again", "replica", x.id)
		}
		return
	}
	text := strings.ToValidUTF8(fmt.Sprintf("its load cannot be polled: %.*s", maxProblem, err), "?")
	if x.problem.Store(&text); was == nil {
		p.o.Logger.Warn("warmpath: the load of a replica cannot be polled", "replica", x.id, "error", err)
	}
}

// A Source is how an engine is asked: its text is one of
//
//	grpc:vllm                   GetLoads on the replica's own address, with vLLM's servicer
//	grpc:sglang                 the same with SGLang's
//	grpc:orca                   the same by ORCA out of band, as server/replica serves it
//	http://HOST:8000/metrics    a page for Prometheus; HOST and PORT are those of the replica's address
type Source struct {
	replica loadprobe.Source  // the replica itself; else
	page    string            // URL with HOST and PORT
	pages   map[string]string // by id of the replica, where it has a page of its own
}

// hostName and portName stand for those of the replica's address.
const hostName, portName = "HOST", "PORT"

// Parse reads a source, load_poll in a config, with the pages of replicas that have one of their own, by id; the error
// names the field.
func Parse(text string, pages map[string]string) (Source, error) {
	if strings.HasPrefix(text, "grpc:") {
		if len(pages) > 0 {
			return Source{}, fmt.Errorf("load_pages: replicas have no pages of their own with load_poll %q", text)
		}
		source := loadprobe.Source(text)
		if err := source.Check(); err != nil {
			return Source{}, fmt.Errorf("load_poll: %w", err)
		}
		return Source{replica: source}, nil
	}
	if err := checkPage(text); err != nil {
		return Source{}, fmt.Errorf("load_poll: %w", err)
	}
	for id, page := range pages {
		if err := checkPage(page); err != nil {
			return Source{}, fmt.Errorf("load_pages.%s: %w", id, err)
		}
	}
	return Source{page: text, pages: pages}, nil
}

func checkPage(text string) error {
	u, err := url.Parse(strings.Replace(text, ":"+portName, ":1", 1))
	switch {
	case err != nil:
		return fmt.Errorf("%q is neither grpc:NAME nor a URL", text)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.User != nil, u.Fragment != "":
		return errors.New("want grpc:vllm, grpc:sglang, grpc:orca, or a URL like http://HOST:8000/metrics without a user and a fragment")
	}
	return nil
}

// pageOf is where the page of a replica at an address is.
func (s Source) pageOf(id, address string) (string, error) {
	page := cmp.Or(s.pages[id], s.page)
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("%q is not host:port", address)
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return strings.NewReplacer(hostName, host, portName, port).Replace(page), nil
}
