package replica

import (
	"cmp"
	crand "crypto/rand"
	"fmt"
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
	return err
}
