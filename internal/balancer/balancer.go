package balancer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/balancer/pickfirst"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/call"
	"github.com/warmpath/warmpath/internal/lookaside"
	"github.com/warmpath/warmpath/internal/router"
)

// lb is the balancer of one channel.
//
// gRPC serialises the balancer's own methods. The endpoints' connections report
// beside them, and picks run beside everything.
type lb struct {
	balancer.ClientConn // to the channel
	opts                balancer.BuildOptions
	target              string

	// owner is the channel's handle; nil for a channel without interceptors, and until it is found. Set with mu held.
	owner atomic.Pointer[call.Handle]
	bare  *call.Handle // stands in for it: for what is logged and recorded
	// binding is the Router in use with its configuration; replaced under mu.
	binding atomic.Pointer[call.Binding]

	described, promptless sync.Once // what a channel without interceptors logs

	ctx     context.Context // ends with the balancer
	end     context.CancelFunc
	besides chan struct{}  // as full as calls of our own are under way: Abort, load_poll
	watches sync.WaitGroup // of the health of replicas

	// mu guards the fields below. It is not held while an endpoint's connections are
	// called, whose own locks are taken before it; the handle's and the Router's are taken after it.
	mu        sync.Mutex
	config    *lbConfig
	endpoints endpoints
	updating  bool // endpoints are being updated: what they report is put into force after it
	attached  attached
	closed    bool
}

func newLB() *lb {
	b := &lb{bare: call.NewHandle(nil, nil), besides: make(chan struct{}, maxBesides)}
	b.ctx, b.end = context.WithCancel(context.Background())
	b.endpoints.all = resolver.NewEndpointMap[*endpoint]()
	b.endpoints.reach(nil)
	return b
}

// handle is the channel's handle, or what stands in for it.
func (b *lb) handle() *call.Handle {
	if h := b.owner.Load(); h != nil {
		return h
	}
	return b.bare
}

// UpdateClientConnState takes a new list of endpoints or a new configuration.
func (b *lb) UpdateClientConnState(s balancer.ClientConnState) error {
	config, ok := s.BalancerConfig.(*lbConfig)
	if !ok {
		return fmt.Errorf("warmpath: unexpected balancer config of type %T", s.BalancerConfig)
	}
	b.mu.Lock()
	h := b.owner.Load()
	if h == nil {
		h = call.HandleFrom(s.ResolverState.Attributes)
	}
	watch := lookaside.From(s.ResolverState)
	var r *router.Router
	err := ErrNeedsServer
	if watch != nil || !NeedsServer(&config.Adoption) {
		r, err = b.router(config, h)
	}
	if err != nil {
		b.mu.Unlock()
		err = fmt.Errorf("warmpath: %w", err)
		b.ResolverError(err)
		return err
	}
	b.attached.watch = watch
	kept, left := b.endpoints.set(b, s.ResolverState.Endpoints)
	b.configure(config, h, r)
	b.updating = true
	b.mu.Unlock()
	if h != nil {
		b.announce(h)
	}
	err = b.update(kept, left, s.ResolverState)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.updating = false
	for _, e := range kept {
		e.open() // of a fleet that was larger
	}
	b.endpoints.connect(b.binding.Load().Router)
	b.publish()
	return err
}

// update passes the endpoints on to their connections, and closes those that left. Called without mu.
func (b *lb) update(kept, left []*endpoint, s resolver.State) (err error) {
	s = pickfirst.EnableHealthListener(s)
	for _, e := range kept {
		err = errors.Join(err, e.update(s, b.opts))
	}
	for _, e := range left {
		e.child.Close()
	}
	if len(kept) == 0 {
		return balancer.ErrBadResolverState
	}
	return err
}

// publish gives gRPC a picker. While nothing is connected that is one which queues calls, or fails them with the
// error of the connection that failed last. Called with mu held.
func (b *lb) publish() {
	binding := b.binding.Load()
	if binding != nil && len(binding.Router.View().Connected()) > 0 {
		// Connections that are opened by picks are as good as ready.
		b.ClientConn.UpdateState(balancer.State{ConnectivityState: connectivity.Ready, Picker: &picker{lb: b}})
		return
	}
	s := balancer.State{ConnectivityState: b.endpoints.aggregate()}
	s.Picker = base.NewErrPicker(balancer.ErrNoSubConnAvailable)
	switch {
	case binding != nil && b.endpoints.all.Len() == 0:
		err := fmt.Errorf("warmpath: the fleet is empty: %s names no replica", b.target)
		s = balancer.State{ConnectivityState: connectivity.TransientFailure, Picker: base.NewErrPicker(err)}
	case s.ConnectivityState == connectivity.TransientFailure:
		s.Picker = b.endpoints.failed
	case s.ConnectivityState == connectivity.Ready: // the Router is not in force yet
		s.ConnectivityState = connectivity.Connecting
	}
	b.ClientConn.UpdateState(s)
}

// ResolverError is called when the resolver fails: the last list stays. A status that it failed with is not the
// call's: gRPC would fail calls that are to wait for a connection, and others with INTERNAL.
func (b *lb) ResolverError(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.endpoints.all.Len() == 0 {
		b.ClientConn.UpdateState(balancer.State{
			ConnectivityState: connectivity.TransientFailure,
			Picker:            base.NewErrPicker(errors.New(err.Error())),
		})
	}
}

// UpdateSubConnState is never called: states come through listeners.
func (b *lb) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}

// ExitIdle opens the connections that are not, if all are to be open.
func (b *lb) ExitIdle() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.endpoints.all.Values() {
		e.open()
	}
}

// Close ends the balancer: queued calls go back to gRPC. What
// was learned stays with the channel's handle, if it has one.
func (b *lb) Close() {
	b.mu.Lock()
	b.closed = true
	b.endpoints.reach(nil)
	leave(&b.attached.leaveView)
	leave(&b.attached.leaveEvents)
	leave(&b.attached.leaveMetrics)
	all := b.endpoints.all.Values()
	for _, e := range all {
		e.state.Store(gone) // the Router may outlive the balancer: it is not to hold on to connections
	}
	var unused []*router.Router
	if binding, h := b.binding.Load(), b.owner.Load(); h != nil && binding != nil {
		binding.Router.Fleet.Disconnect()
		h.Bind(binding, nil, b.opts.ChannelzParent)
		unused = h.Keep(binding)
	} else if binding != nil {
		unused = append(unused, binding.Router)
	}
	b.mu.Unlock()
	b.end()
	b.watches.Wait()
	for range maxBesides { // waits for those under way, and leaves room for no other
		b.besides <- struct{}{}
	}
	for _, e := range all {
		if e.child != nil {
			e.child.Close()
		}
	}
	b.retire(unused...)
}

// retire closes Routers. Called without mu held: a policy may take its time.
func (b *lb) retire(unused ...*router.Router) {
	b.mu.Lock()
	ended := b.attached.ended
	b.attached.ended = nil
	b.mu.Unlock()
	for _, events := range ended {
		events.Close()
	}
	for _, r := range unused {
		if err := r.Close(); err != nil {
			b.handle().Logger.Warn("warmpath: a policy was not closed in order", "error", err)
		}
	}
}

var errGone = errors.New("warmpath: no replica that the call may use is connected")

// announce writes the one line of a channel that is bound to the balancer with a config.
func (b *lb) announce(h *call.Handle) {
	b.mu.Lock()
	c := b.config
	b.mu.Unlock()
	if h.Announces(c.text) {
		attrs := append([]slog.Attr{slog.String("target", b.target)}, router.Describe(*c.Config)...)
		h.Logger.LogAttrs(context.Background(), slog.LevelInfo, "warmpath: the channel is bound", attrs...)
	}
}

// warnNoKey warns once that calls have no key; method is empty for a call without interceptors.
func (b *lb) warnNoKey(binding *call.Binding, method string) {
	h := b.handle()
	h.NoKey.Do(func() {
		if method == "" && binding.Uses&policy.UsesPrompt != 0 {
			return // warnBare has warned
		}
		h.Logger.Warn("warmpath: a call carries no key that the policy routes by, and is routed by load; "+
			"this is logged once", "target", b.target, "policy", binding.Policy, "method", method,
			"hint", "use client.WithSession or a metadata key of session_keys, or set in dialects which field is the prompt")
	})
}

// warnBare warns once that prompts do not reach the policy.
func (b *lb) warnBare() {
	b.promptless.Do(func() {
		b.handle().Logger.Warn("warmpath: the policy looks at prompts, and calls come without the interceptors of " +
			"client.New or client.DialOptions: they are routed by session, or else by load")
	})
}
