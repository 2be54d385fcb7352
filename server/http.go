package server

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/endpoint"
	"github.com/warmpath/warmpath/internal/httpendpoint"
	"github.com/warmpath/warmpath/internal/page"
)

// maxHeaderBytes bounds the head of a request, as for gRPC.
const maxHeaderBytes = 16 << 10

const (
	// httpWriteGrace is how long an answer may take to be written, beside the time to read.
	httpWriteGrace = 10 * time.Second
	// httpIdleTimeout is how long a connection without requests is kept.
	httpIdleTimeout = time.Minute
	// maxBodies bounds the bodies of the HTTP endpoint, in bytes, by the number of its connections.
	maxBodies = 1 << 30
)

// openHTTP makes the HTTP endpoint, if the config has one.
func (s *Server) openHTTP(c *Config) {
	if c.HTTP.Listen == "" {
		return
	}
	h := httpendpoint.NewHandler(c.HTTP, frontend{services{Server: s}}, s.serving)
	shown := s.openPage(c)
	mux := http.NewServeMux()
	mux.Handle(httpendpoint.HealthPath, h) // for load balancers, which have no token
	mux.Handle(httpendpoint.RoutePath, s.authenticator.http(s.traced(h), httpendpoint.Deny))
	mux.Handle("/", s.authenticator.http(h, httpendpoint.Deny))
	for _, pattern := range page.Patterns {
		mux.Handle(pattern, shown)
	}
	read := time.Duration(c.HTTP.ReadTimeout)
	s.maxHTTP = min(c.MaxConnections, maxBodies/c.HTTP.MaxBodyBytes)
	s.http = &http.Server{
		Handler: mux, MaxHeaderBytes: maxHeaderBytes,
		ReadHeaderTimeout: read, ReadTimeout: 2 * read, WriteTimeout: 2*read + httpWriteGrace, IdleTimeout: httpIdleTimeout,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

// serving reports whether new requests are taken.
func (s *Server) serving() bool { return s.draining.Err() == nil }

// ServeRoutes serves the HTTP endpoint until Shutdown or Close, and returns nil after them. It is an error if the
// config has no address for it. TLS and principals are those of gRPC; only /healthz needs no principal.
func (s *Server) ServeRoutes(lis net.Listener) error {
	if s.http == nil {
		return errors.New("http.listen: the config has none")
	}
	lis = newBoundedListener(lis, s.maxHTTP, s.log)
	if s.certs != nil { // one request at a time for each connection: the bound on connections bounds the requests
		lis = tls.NewListener(lis, s.certs.config("http/1.1"))
	}
	err := s.http.Serve(lis)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// openPage makes the page, which keeps what its charts show from then on. It returns its handler behind the principals.
func (s *Server) openPage(c *Config) http.Handler {
	p := page.New(frontend{services{Server: s}}, page.Options{
		MaxBody: c.HTTP.MaxBodyBytes, Until: s.draining,
	})
	ctx := context.WithValue(s.draining, principalKey{}, s.authenticator.unrestricted)
	s.recording.Go(func() { p.Record(ctx) })
	return tokenAsPassword(s.authenticator.http(p, page.Deny))
}

// tokenAsPassword lets browsers send a token, as the password of any name. Only the page accepts it, since browsers add
// it to requests that other sites make.
func tokenAsPassword(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, token, ok := r.BasicAuth(); ok && len(r.Header.Values("Authorization")) == 1 {
			r = r.Clone(r.Context())
			r.Header.Set("Authorization", "Bearer "+token)
		}
		next.ServeHTTP(w, r)
	})
}

func init() {
	endpoint.Of = func(s any) endpoint.Host { return frontend{services{Server: s.(*Server)}} }
}

// frontend is the server as its page sees it, and the front ends that this module does not link.
type frontend struct{ services }

// ServerOptions implements [endpoint.Host].
func (h frontend) ServerOptions() []grpc.ServerOption { return h.options() }

// Bounded implements [endpoint.Host].
func (h frontend) Bounded(lis net.Listener) net.Listener {
	return newBoundedListener(lis, h.first.MaxConnections, h.log)
}

// Health implements [endpoint.Host].
func (h frontend) Health(names map[string]string) healthpb.HealthServer {
	return &healthService{Server: h.Server, names: names}
}

// Services implements [endpoint.Host].
func (h frontend) Services() grpc.ServiceRegistrar { return h.grpc }

// Unseen implements [endpoint.Host].
func (h frontend) Unseen(reservation string) {
	if d := (*h.deployments.Load())[deploymentOf(reservation)]; d != nil {
		d.picks.leases.counts(reservation, h.now())
	}
}

// Deployments implements [endpoint.Host].
func (h frontend) Deployments(ctx context.Context) []string {
	return slices.Sorted(maps.Keys(h.open(h.principalOf(ctx))))
}

// unnamed is the reading where no deployment is meant.
var unnamed = sync.OnceValue(func() endpoint.Reading {
	r, _ := endpoint.NewReading(policy.Config{})
	return r
})

// Reading implements [endpoint.Host].
func (h frontend) Reading(ctx context.Context, deployment, model string) endpoint.Reading {
	d, _, _, err := h.meant(h.principalOf(ctx), deployment, model)
	if err != nil {
		return unnamed()
	}
	return d.hosted.Load().reading
}

// Principal implements [page.Host].
func (h frontend) Principal(r *http.Request) string { return h.principalOf(r.Context()).name }

// Admitted implements [page.Host].
func (h frontend) Admitted(r *http.Request) error {
	now, err := h.authenticator.identify(r.Header.Values("Authorization"), verified(r.TLS))
	return replaced(h.principalOf(r.Context()), now, err)
}
