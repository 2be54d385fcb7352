// Package replica is what a model server written in Go imports to be a good replica: it refuses what is too much for
// it, reports its load, registers itself to the look-aside server, and leaves without losing a call.
//
//	r, err := replica.New(replica.Config{
//		Replica:     policy.Attributes{Address: "10.0.0.1:50051", MaxOngoing: 64},
//		Servers:     []string{"router:4770"},
//		DialOptions: []grpc.DialOption{grpc.WithTransportCredentials(creds)},
//	})
//	s := grpc.NewServer(r.ServerOptions()...)
//	pb.RegisterEngineServer(s, engine)
//	err = r.Serve(ctx, s, listener) // until ctx and the calls under way have ended
//
// # Rule
//
// Interceptors count the calls under way. One that finds max_ongoing_requests of them is refused at once with
// RESOURCE_EXHAUSTED and the trailer warmpath-rejection-bin, which carries the count: warmpath's clients retry on
// another replica and use the count. An admitted call ends with the replica's load as an ORCA report, in the trailer
// endpoint-load-metrics-bin; load_poll reads the same report out of band. gRPC's own services (health, reflection,
// channelz, ORCA) are neither counted nor refused.
//
// Each look-aside server is sent everything about the replica in every heartbeat, so it has the replica again after
// one, should it have been restarted. A change of the adapters, and draining, are sent at once. A server that cannot
// be reached costs nothing but attempts, a few seconds apart.
//
// A replica that drains reports it (health NOT_SERVING, heartbeats), serves new calls for DrainNotice, until the clients
// have the report, takes no new calls after that (GOAWAY), waits for those under way, and deregisters.
//
// # Complexity
//
// A call costs a few atomic operations and one short trailer; no lock is taken. A heartbeat is one unary call per
// server.
//
// # Guarantees
//
// No more than max_ongoing_requests calls are ever in the handlers, and no call is refused while there are fewer. A
// handler that panics, or whose call is gone, is counted out. Refused calls never reach a handler. Requests are not
// read, kept or logged. No goroutine runs before [Replica.Serve] or after it.
//
// A unary call's message was read by gRPC before it can be refused; a stream's was not.
//
// Source: Ray Serve's rejection by replicas with the queue length; gRFC A51 (ORCA); gRPC's health checking protocol;
// warmpath.v1.RoutingService.Register.
package replica

import (
	"cmp"
	crand "crypto/rand"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/admission"
	"github.com/warmpath/warmpath/internal/strict"
)

// A Replica is this process as clients and look-aside servers see it. Its methods may be called from any goroutine.
type Replica struct {
	cfg    Config
	bound  int64 // 0 = none
	after  func(time.Duration) <-chan time.Time
	jitter func(time.Duration) time.Duration
	health *health.Server

	ongoing  atomic.Int64
	draining atomic.Bool
	served   atomic.Bool

	// mu guards what follows. Nothing is locked under it.
	mu      sync.Mutex
	own     policy.Attributes // as registered; its slices are never written
	changed chan struct{}     // closed when own changes, and replaced
}

// New returns a replica that is not registered yet. An error names the wrong field of the config.
func New(c Config) (*Replica, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	c.Replica.Instance = cmp.Or(c.Replica.Instance, crand.Text())
	return &Replica{
		cfg:    c,
		bound:  int64(c.Replica.MaxOngoing),
		after:  time.After,
		jitter: func(d time.Duration) time.Duration { return d - rand.N(d/8+1) },
		health: health.NewServer(),
		own:    c.Replica,

		changed: make(chan struct{}),
	}, nil
}

// ServerOptions returns the interceptors, for [grpc.NewServer]. Put them first: a call that is refused costs nothing
// else.
func (r *Replica) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(r.unary), grpc.ChainStreamInterceptor(r.stream)}
}

// Health returns the health service, which reports when the replica drains. [Replica.Serve] registers it unless the
// server has one already.
func (r *Replica) Health() *health.Server { return r.health }

// Ongoing returns how many calls are in the handlers.
func (r *Replica) Ongoing() int { return int(r.ongoing.Load()) }

// SetAdapters sets which LoRA adapters are loaded. The look-aside servers are sent it at once. Empty names are
// dropped.
func (r *Replica) SetAdapters(names []string) {
	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == "" })
	r.change(func(own *policy.Attributes) { own.Adapters = names })
}

// drain reports that the replica takes no new sessions.
func (r *Replica) drain() {
	r.draining.Store(true)
	r.health.Shutdown()
	r.change(func(own *policy.Attributes) { own.Draining = true })
}

// change changes own. If it has changed, every link sends a heartbeat at once.
func (r *Replica) change(do func(*policy.Attributes)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.own
	if do(&r.own); !was.Equal(r.own) {
		close(r.changed)
		r.changed = make(chan struct{})
	}
}

// reachedAt sets the address of the replica from its listener, where the config has none.
func (r *Replica) reachedAt(l net.Addr) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.own.Address != "" || len(r.cfg.Servers) == 0 {
		return nil
	}
	a, err := netip.ParseAddrPort(l.String())
	if err != nil || a.Addr().IsUnspecified() {
		return fmt.Errorf("replica: Replica: address: missing, and the listener's, %s, is none that clients can use", l)
	}
	r.own, err = settle(r.own, l.String())
	return strict.In("replica: Replica: ", err)
}

// Config describes the replica. Its zero value counts calls, refuses none, and registers nowhere.
type Config struct {
	// Replica is the entry to register, as in a fleet file. Address is host:port as clients reach it; default: the
	// listener's, if clients can use it. The id defaults to the address: set one if that changes from one start to the
	// next. MaxOngoing bounds the calls in the handlers; 0 = no bound.
	Replica policy.Attributes
	// KVTokens is the size of the KV cache in tokens; 0 = not known.
	KVTokens int

	// Servers are the look-aside servers to register with, as gRPC targets: all of those that serve the deployment.
	Servers []string
	// DialOptions are for the connections to Servers, transport credentials among them.
	DialOptions []grpc.DialOption
	// Deployment to register in; empty = the servers' only one.
	Deployment string
	// Lease is how long a server keeps the replica without a heartbeat: 1 s to 1 h; 0 = 10 s.
	Lease time.Duration

	// DrainNotice is how long new calls are still served after the replica has reported that it drains, until the clients
	// have the report; default 1 s, negative = no time.
	DrainNotice time.Duration
	// DrainTimeout is how long calls under way may take after that; default 30 s. The rest is cut off.
	DrainTimeout time.Duration

	// Load returns the engine's load, at the end of every call, for every heartbeat and for load_poll; nil = the
	// interceptors' count. It is called from many goroutines, and must neither block nor take long.
	Load func() Load
	// Stats returns free-form numbers for custom policies, for every heartbeat; nil = none. The map must not be written
	// afterwards. Called from one goroutine per server.
	Stats func() map[string]float64
	// Counts reports whether a method is a call for the model; others, like Abort, are neither counted nor refused, and
	// carry no load. nil = all. gRPC's own services never count. Called from many goroutines.
	Counts func(fullMethod string) bool
	// OmitLoad leaves the load out of the trailers and out of band, for servers that send ORCA reports of their own.
	OmitLoad bool
	// Logger logs registrations and their failures; default [slog.Default].
	Logger *slog.Logger
}

const minLease, maxLease = time.Second, time.Hour

// withDefaults fills in what is empty and checks the rest; errors name the field.
func (c Config) withDefaults() (Config, error) {
	c.DrainNotice = max(cmp.Or(c.DrainNotice, time.Second), 0)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 30*time.Second)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	settled, wrong := settle(c.Replica, cmp.Or(c.Replica.Address, "127.0.0.1:1"))
	if c.Replica.Address != "" { // else the listener's is not known yet
		c.Replica = settled
	}
	return c, strict.In("replica: ", cmp.Or(
		strict.Want(c.DrainTimeout >= 0, "DrainTimeout: %v is less than 0", c.DrainTimeout),
		strict.Within("Lease", cmp.Or(c.Lease, minLease), minLease, maxLease),
		strict.Within("Replica: max_ongoing_requests", c.Replica.MaxOngoing, 0, math.MaxInt32),
		strict.Within("KVTokens", c.KVTokens, 0, math.MaxInt32),
		strict.In("Replica: ", wrong),
	))
}

// settle returns a replica at an address with its defaults, as a fleet file would have it.
func settle(r policy.Attributes, address string) (policy.Attributes, error) {
	r.Address = address
	err := admission.Admit(&r)
	return r, err
}
