// Package server is the look-aside server: membership, load and decisions for any number of clients, in one process
// and in memory.
//
// # Rule
//
// A deployment is one fleet and one [router.Router] over it. A client asks it for a replica (ChooseReplica), or
// watches it and picks by itself (WatchReplicas). The load of a replica is one figure for both: the sum of the reports
// of watching clients and of the picks made here. It is added up and sent once an interval; from it a client subtracts
// its own reports, up to the one that the server has counted.
//
// A pick made here ends with its lease at the latest. One of mode count adds to the load for a fixed time, so that a
// client that never reports does not send everything to one replica.
//
// Members come from the config, from a gRPC target that is resolved again at an interval, and from replicas that
// register themselves with a lease. A source that fails leaves its last members.
//
// # Complexity
//
// A pick costs the policy's time and O(replicas) for its fallbacks. A report costs its own size. Once an interval the
// sum costs O(replicas); each watcher is sent the changes, which are put together once for all watchers that are up to
// date.
//
// # Guarantees
//
// Everything that clients can make grow is bounded by the [Config]. A config that is refused leaves the one before in
// force. One that is accepted keeps the state of every deployment whose policy is unchanged; another policy begins with
// the fleet, the load and the ejections of the one before. No prompt is kept or logged: text and tokens are hashed in the
// call.
//
// The package imports neither client nor resolver nor balancer: it shares with them the core, the policies and the
// contract in proto/warmpath/v1.
package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	channelz "google.golang.org/grpc/channelz/service"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/warmpath/warmpath/internal/telemetry"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// Options configure a [Server]. None is needed.
type Options struct {
	// Logger logs changes and failures; nil = slog.Default().
	Logger *slog.Logger
	// now is the clock of leases and reports; nil = the real one.
	now func() time.Time
	// Meter records the metrics; nil = OpenTelemetry's global provider, also one that is set later.
	Meter metric.MeterProvider
	// Tracer makes the spans of picks; nil = OpenTelemetry's global provider, also one that is set later.
	Tracer trace.TracerProvider
}

// A Server is a look-aside server. Safe for use by many goroutines.
type Server struct {
	log           *slog.Logger
	now           func() time.Time
	incarnation   string
	first         Config // of New; its fields that are read once are in force
	authenticator *authenticator
	certs         *certificates // nil = plaintext
	began         time.Time
	recorder      *telemetry.Recorder
	membership    membership
	tracer        trace.Tracer
	grpc          *grpc.Server
	http          *http.Server    // nil without an address for it
	maxHTTP       int             // its connections
	recording     sync.WaitGroup  // what the page shows
	draining      context.Context // ends when streams are to end
	drain         context.CancelFunc

	// deployments is replaced under mu and read without it.
	deployments atomic.Pointer[map[string]*deployment]

	// mu guards what follows. Deployments' locks are taken under it.
	mu     sync.Mutex
	closed bool
}

// services are the server's own gRPC services.
type services struct {
	warmpathv1.UnimplementedRoutingServiceServer
	warmpathv1.UnimplementedStatusServiceServer
	warmpathv1.UnimplementedStoreServiceServer
	*Server
}

// New returns a server that follows the deployments of the config, until Shutdown. It listens nowhere yet.
func New(c *Config, o Options) (*Server, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	full := c.withDefaults()
	c = &full
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.now == nil {
		o.now = time.Now
	}
	o.Tracer = cmp.Or(o.Tracer, otel.GetTracerProvider())
	recorder, err := telemetry.New(o.Meter)
	if err != nil {
		return nil, err
	}
	s := &Server{
		log: o.Logger, now: o.now, incarnation: rand.Text(),
		first: *c, authenticator: newAuthenticator(o.Logger),
		began: o.now(), recorder: recorder, tracer: o.Tracer.Tracer(telemetry.Scope),
	}
	s.draining, s.drain = context.WithCancel(context.Background())
	s.deployments.Store(&map[string]*deployment{})
	if s.certs, err = openCertificates(c.TLS, "tls", o.Logger); err != nil {
		return nil, err
	}
	if s.membership, err = joinCluster(c, s.incarnation, o.Logger); err != nil {
		return nil, err
	}
	s.grpc = grpc.NewServer(s.options()...)
	warmpathv1.RegisterRoutingServiceServer(s.grpc, services{Server: s})
	warmpathv1.RegisterStatusServiceServer(s.grpc, services{Server: s})
	warmpathv1.RegisterStoreServiceServer(s.grpc, services{Server: s})
	healthpb.RegisterHealthServer(s.grpc, &healthService{Server: s})
	reflection.Register(s.grpc)
	channelz.RegisterChannelzServiceToServer(s.grpc)
	s.openHTTP(c)
	if err := s.Update(c); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

const (
	// maxMessageBytes bounds a message that is received.
	maxMessageBytes = 4 << 20
	// maxStreams bounds the calls under way on one connection.
	maxStreams = 1000
)

func (s *Server) options() []grpc.ServerOption {
	o := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessageBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(16 << 10),
		grpc.ConnectionTimeout(10 * time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	}
	if s.certs != nil {
		o = append(o, grpc.Creds(credentials.NewTLS(s.certs.config("h2"))))
	}
	return append(o, s.authenticator.interceptors()...)
}

// Update puts another config into force, all of it or, on an error, none of it. Deployments keep their state; fields
// that are read once keep their values.
func (s *Server) Update(c *Config) error {
	given := c.withDefaults()
	c = new(given)
	c.MaxConnections = s.first.MaxConnections // read once
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return grpc.ErrServerStopped
	}
	changes, err := s.prepare(c)
	if err == nil {
		err = s.authenticator.set(c)
	}
	if err != nil {
		for _, x := range changes {
			x.discard()
		}
		return err
	}
	s.warnReadOnce(&given)
	all := make(map[string]*deployment, len(changes))
	for name, x := range changes {
		x.apply(c)
		all[name] = x.deployment
	}
	before := *s.deployments.Swap(&all)
	for name, d := range before {
		if all[name] == nil {
			d.close()
		}
	}
	s.authenticator.moved.give()
	return nil
}

// prepare builds what a config's deployments need. With an error it returns what was built so far. Called with mu
// held.
func (s *Server) prepare(c *Config) (changes map[string]*change, err error) {
	changes = make(map[string]*change)
	for name, dc := range c.Deployments {
		d := (*s.deployments.Load())[name]
		if d == nil {
			d = newDeployment(name, s.log, s.now, s.authenticator.moved.give, s.recorder, s.membership)
		}
		x, err := d.prepare(dc)
		if err != nil {
			return changes, fmt.Errorf("deployments.%s: %w", name, err)
		}
		changes[name] = x
	}
	return changes, nil
}

// Serve serves until Shutdown or Close, on as many listeners as it is called with. It returns nil after them.
func (s *Server) Serve(lis net.Listener) error {
	err := s.grpc.Serve(newBoundedListener(lis, s.first.MaxConnections, s.log))
	if errors.Is(err, grpc.ErrServerStopped) { // it was shut down before it began
		return nil
	}
	return err
}

// Shutdown ends the streams of watchers, waits for the calls under way, and closes. When the context ends first, it
// closes at once and returns its error.
func (s *Server) Shutdown(ctx context.Context) error {
	s.drain()
	inTime := context.AfterFunc(ctx, s.Close)
	var ending sync.WaitGroup
	if s.http != nil {
		ending.Go(func() { _ = s.http.Shutdown(ctx) }) // Close ends the rest
	}
	ending.Go(s.grpc.GracefulStop)
	ending.Wait()
	var err error
	if !inTime() {
		err = ctx.Err()
	}
	s.Close()
	return err
}

// Close ends everything at once.
func (s *Server) Close() {
	s.drain()
	s.recording.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	for _, d := range *s.deployments.Load() {
		d.close()
	}
	s.grpc.Stop()
	if s.membership.bus != nil {
		s.membership.bus.Close()
	}
	s.authenticator.close()
	if s.http != nil {
		_ = s.http.Close()
	}
}

// boundedListener bounds the connections; one host may have half of them. More are closed at once: if they waited, a
// host with idle connections would shut out the others.
type boundedListener struct {
	net.Listener
	most    int
	log     *slog.Logger
	refused rate.Sometimes // when refusals are logged

	mu   sync.Mutex     // guards open; nothing is locked under it
	open map[string]int // by host; "" = all
}

func newBoundedListener(l net.Listener, most int, log *slog.Logger) *boundedListener {
	return &boundedListener{
		Listener: l, most: most, log: log, open: make(map[string]int),
		refused: rate.Sometimes{First: 1, Interval: 10 * time.Second},
	}
}

// Accept implements [net.Listener].
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host, _, err := net.SplitHostPort(c.RemoteAddr().String())
		if err != nil { // a Unix socket has no hosts
			host = c.RemoteAddr().Network()
		}
		if l.count(host, 1) {
			return &boundedConn{Conn: c, end: sync.OnceFunc(func() { l.count(host, -1) })}, nil
		}
		l.refused.Do(func() {
			l.log.Warn("warmpath: connections are refused: max_connections", "most", l.most, "last", host)
		})
		_ = c.Close()
	}
}

// count counts n connections of a host more, unless there are as many as there may be.
func (l *boundedListener) count(host string, n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > 0 && (l.open[""] >= l.most || l.open[host] >= (l.most+1)/2) {
		return false
	}
	l.open[""] += n
	if l.open[host] += n; l.open[host] == 0 {
		delete(l.open, host)
	}
	return true
}

// boundedConn gives its place back when it is closed.
type boundedConn struct {
	net.Conn
	end func()
}

// Close implements [net.Conn].
func (c *boundedConn) Close() error {
	defer c.end()
	return c.Conn.Close()
}
