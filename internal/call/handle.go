package call

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"weak"

	"google.golang.org/grpc"
	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/channelz"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// A Binding is what a balancer offers the interceptors of its channel. It does
// not change once attached.
type Binding struct {
	Router      *router.Router
	Config      *policy.Config
	Policy      string // name, for telemetry
	Uses        policy.Uses
	Dialects    *requestkey.Table
	Telemetry   *telemetry.Recorder
	Ranks       bool                    // replicas have several data-parallel ranks
	SessionKeys *requestkey.SessionKeys // nil = none
	NeedsPrompt bool                    // calls without a prompt are refused
	Central     Central                 // zero = the server is not asked
	// Abort has a replica's engine stop a request that was cancelled, and calls ended with the
	// result, from any goroutine. It returns at once; nil = engines are not reached. Of the
	// context only the values are used.
	Abort func(ctx context.Context, replica, method, id string, ended func(how string))
	// Probe asks replicas for their load before one is reserved for a request, and reports whether the Router's
	// Load.Asked is to be called after that; nil = none is asked.
	Probe func(ctx context.Context, q *policy.Request) (asked bool)
	// NoKey warns that a call of a method has no key that the policy can use.
	NoKey func(b *Binding, method string)
	// Key is equal for equal configurations: a kept Router is given
	// to a balancer with the same one only.
	Key string
}

// A Handle is one channel, for its interceptors and its balancer. Safe for use by
// many goroutines.
type Handle struct {
	Telemetry *telemetry.Recorder
	Logger    *slog.Logger
	// Dialects are the application's own: they hold under any config, for the methods that it
	// does not name. Set before first use, and valid.
	Dialects []dialect.Dialect

	// NoKey is for the one warning that calls have no key.
	NoKey sync.Once

	// conn is the channel itself; set before its first call.
	conn weak.Pointer[grpc.ClientConn]

	// bound is the Binding of the one live balancer; noBinding where there is none, or more than one.
	bound     atomic.Pointer[Binding]
	budget    budget
	resumable atomic.Int64    // bytes that streams which may go on elsewhere keep
	learned   atomic.Uint32   // streams that have ended and may have gone on elsewhere
	ends      requestkey.Ends // of outputs

	ever            atomic.Bool // a balancer has met this handle
	unread, unbound sync.Once   // warnings: prompts cannot be read; calls do not reach the balancer

	// mu guards the fields below. A balancer takes it before its own Router's.
	mu   sync.Mutex
	id   channelz.Identifier // the channel's, from its first balancer on
	live []*Binding
	kept *Binding // of the last balancer that left
	// watched: there is a goroutine that closes what is kept when the channel is closed.
	watched bool
	// announced is the config of the last line that the channel is bound.
	announced string
}

// NewHandle returns the handle of a new channel.
func NewHandle(t *telemetry.Recorder, l *slog.Logger) *Handle {
	if t == nil {
		t = telemetry.Default()
	}
	h := &Handle{Telemetry: t, Logger: cmp.Or(l, slog.Default())}
	h.bound.Store(noBinding)
	return h
}

// SetConn sets which channel the handle is. Called before the channel's first call.
func (h *Handle) SetConn(cc *grpc.ClientConn) { h.conn = weak.Make(cc) }

// Owns reports whether a balancer that was built for this channel and target is one of the handle's channel. gRPC
// gives a balancer no better name of its channel, and the first call on a channel may be one with the context of
// another's.
func (h *Handle) Owns(id channelz.Identifier, target string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.id != nil {
		return h.id == id
	}
	cc := h.conn.Value()
	return cc != nil && cc.CanonicalTarget() == target
}

// Announces reports whether a config is another one than that of the last call, so that a channel that was idle is not
// announced again.
func (h *Handle) Announces(config string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	changed := config != h.announced
	h.announced = config
	return changed
}

// Defers reports whether streams of a method that sends several messages are to
// be opened by their first action: their dialect has that set.
func (h *Handle) Defers(method string) bool {
	return h.bound.Load().Dialects.Lookup(method).DeferStream()
}

// Bind puts the Binding of a balancer that was built for this channel into force, in the place of its old one. A
// balancer calls it before its first pick, or at its first pick that brings the handle along, after a change of its
// configuration, and, with nil, when it is closed.
func (h *Handle) Bind(old, b *Binding, id channelz.Identifier) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.id = id
	h.ever.Store(true)
	h.live = slices.DeleteFunc(h.live, func(l *Binding) bool { return l == old })
	if b != nil {
		h.live = append(h.live, b)
	}
	only := noBinding
	if len(h.live) == 1 {
		only = h.live[0]
	}
	h.bound.Store(only)
}

// Keep keeps the Router of a balancer that was closed for the next balancer with the same configuration, until the
// channel is closed. It returns the Routers that are of no use any more, for the balancer to close.
func (h *Handle) Keep(b *Binding) (unused []*router.Router) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.kept != nil && h.kept.Router != b.Router {
		unused = append(unused, h.kept.Router)
	}
	h.kept = &Binding{Router: b.Router, Key: b.Key} // nothing of the balancer
	cc := h.conn.Value()
	switch {
	case cc == nil:
	case cc.GetState() == connectivity.Shutdown:
		h.kept = nil
		unused = append(unused, b.Router)
	case b.Router.Closes() && !h.watched:
		h.watched = true
		go h.closeWith(cc)
	}
	return unused
}

// closeWith waits until the channel is closed: while it is idle, it has no balancer that would be.
func (h *Handle) closeWith(cc *grpc.ClientConn) {
	for s := cc.GetState(); s != connectivity.Shutdown; s = cc.GetState() {
		cc.WaitForStateChange(context.Background(), s)
	}
	h.Close()
}

// Take gives out the Router kept for a configuration, or nil. It is given out once.
func (h *Handle) Take(key string) *router.Router {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.kept == nil || h.kept.Key != key {
		return nil
	}
	r := h.kept.Router
	h.kept = nil
	return r
}

// Close closes the Router that is kept: the channel is closed, or not reachable.
func (h *Handle) Close() {
	h.mu.Lock()
	kept := h.kept
	h.kept = nil
	h.mu.Unlock()
	if kept == nil {
		return
	}
	if err := kept.Router.Close(); err != nil {
		h.Logger.Warn("warmpath: a policy was not closed in order", "error", err)
	}
}

// warnUnread logs once that the prompts of a method cannot be read.
func (h *Handle) warnUnread(method string, err error) {
	h.unread.Do(func() {
		h.Logger.Warn("warmpath: calls are routed without their prompt; this is logged once", "method", method, "error", err)
	})
}

// warnUnbound warns, once a channel, when a replica answered a call that no warmpath picker has seen.
func (h *Handle) warnUnbound(ctx context.Context) {
	h.unbound.Do(func() {
		h.Telemetry.Count(ctx, telemetry.Unbound, "", "")
		h.Logger.Warn("warmpath: calls of this channel do not reach the warmpath balancer: " +
			"a service config from the resolver or grpc.WithDefaultServiceConfig names another policy; " +
			`put {"loadBalancingConfig":[{"warmpath":{}}]} there, or dial with grpc.WithDisableServiceConfig`)
	})
}

// noBinding holds while no balancer, or more than one, is bound: it has no Router.
var noBinding = &Binding{Config: new(policy.Config{}.WithDefaults()), Dialects: new(requestkey.Table)}

type stateKey struct{}

// SetHandle returns the resolver state with the channel's handle in it.
func SetHandle(s resolver.State, h *Handle) resolver.State {
	s.Attributes = s.Attributes.WithValue(stateKey{}, h)
	return s
}

// HandleFrom returns the handle in the attributes of a resolver's state, or nil.
func HandleFrom(a *attributes.Attributes) *Handle {
	h, _ := a.Value(stateKey{}).(*Handle)
	return h
}
