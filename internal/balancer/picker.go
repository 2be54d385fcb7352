package balancer

import (
	"context"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/call"
	"github.com/warmpath/warmpath/internal/fault"
	"github.com/warmpath/warmpath/internal/router"
)

var logger = grpclog.Component("warmpath")

// picker asks the Router. It holds no state: a new one is published to make
// gRPC pick again for the calls that are blocked.
type picker struct{ lb *lb }

// Pick picks a replica, or uses the reservation that the call brought along.
func (p *picker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	rpc, route := call.From(info.Ctx)
	if rpc == nil {
		return p.pickBare(info, route)
	}
	if h := rpc.Handle(); h != p.lb.owner.Load() && !p.lb.serves(h) {
		return p.pickBare(info, rpc.Beyond(route))
	}
	binding := p.lb.binding.Load()
	a, ready, err := rpc.Claim(info.Ctx, route, binding, connection)
	for err == router.ErrClosed && p.lb.binding.Load() != binding {
		binding = p.lb.binding.Load()
		a, ready, err = rpc.Claim(info.Ctx, route, binding, connection)
	}
	if err != nil {
		return p.refuse(binding, err)
	}
	res, err := hostOf(a.Decision().Replica).send(info)
	if !ready {
		// The pick opens the connection. Should it have become ready meanwhile, the
		// picker with that state is on its way.
		if err == nil && res.Done != nil {
			res.Done(balancer.DoneInfo{})
		}
		return balancer.PickResult{}, balancer.ErrNoSubConnAvailable
	}
	if err != nil {
		a.Finished(balancer.DoneInfo{})
		return res, err
	}
	res.Metadata = a.RankMetadata(info.Ctx)
	res.Done = chain(res.Done, a.Finished)
	return res, nil
}

// host is what a Router has of an endpoint. The Router may outlive the balancer, so nothing here leads to the channel
// once picker is nil.
type host struct {
	// picker is that of the connections, replaced on every change of their state.
	picker atomic.Pointer[childState]
	quick  atomic.Pointer[quick]
}

func hostOf(r *policy.Replica) *host { return r.Host().(*host) }

// childState is the state of an endpoint's connections together.
type childState struct {
	balancer.State
	ready int // connections, where State is Ready
}

// connectivity is the state of the connection; Shutdown once it is gone for good.
func (h *host) connectivity() connectivity.State {
	if s := h.picker.Load(); s != nil {
		return s.ConnectivityState
	}
	return connectivity.Shutdown
}

func connection(r *policy.Replica) connectivity.State { return hostOf(r).connectivity() }

// send asks the replica's own child for its connection.
func (h *host) send(info balancer.PickInfo) (balancer.PickResult, error) {
	child := h.picker.Load()
	if child == nil {
		return balancer.PickResult{}, balancer.ErrNoSubConnAvailable
	}
	res, err := child.Picker.Pick(info)
	if err != nil {
		// The connection is being opened by this pick, or went away since the
		// Router was updated: either way a new picker comes.
		return balancer.PickResult{}, balancer.ErrNoSubConnAvailable
	}
	return res, nil
}

// refuse turns the Router's error into one that makes gRPC do the right thing:
// a status fails the call at once, another error lets wait_for_ready wait.
func (p *picker) refuse(b *call.Binding, err error) (balancer.PickResult, error) {
	switch err {
	case router.ErrNotConnected:
		if len(b.Router.View().Connected()) > 0 {
			return balancer.PickResult{}, errGone
		}
		return balancer.PickResult{}, balancer.ErrNoSubConnAvailable
	case router.ErrClosed:
		return balancer.PickResult{}, balancer.ErrNoSubConnAvailable
	case router.ErrFull:
		return balancer.PickResult{}, status.Error(codes.ResourceExhausted, "warmpath: "+err.Error()+
			"; calls wait for room when the channel has the interceptors of client.New or client.DialOptions")
	}
	return balancer.PickResult{}, call.Status(err)
}

func chain(first, then func(balancer.DoneInfo)) func(balancer.DoneInfo) {
	if first == nil {
		return then
	}
	return func(i balancer.DoneInfo) {
		first(i)
		then(i)
	}
}

// bare is a call without our interceptors. It is used again once it is done, so
// that picking does not allocate.
type bare struct {
	ctx     context.Context
	request policy.Request
	held    router.Reservation
	done    func(balancer.DoneInfo)
	router  *router.Router
}

var bares = sync.Pool{}

func newBare() *bare {
	if c, ok := bares.Get().(*bare); ok {
		return c
	}
	c := &bare{}
	c.done = func(i balancer.DoneInfo) {
		call.Ended(&c.held, i)
		switch {
		case !i.BytesSent && i.Err == nil: // the connection was gone before anything happened
			c.held.Withdraw(&c.request)
		case c.router.Observes():
			c.router.Complete(&c.request, c.held.Decision, policy.Outcome{
				Err: i.Err, Sent: i.BytesSent, Fault: fault.Of(i.Err), Usage: policy.NoUsage,
			})
		}
		c.free()
	}
	return c
}

// Message implements state.Origin: a picker does not see it.
func (c *bare) Message() any { return nil }

// Header implements state.Origin.
func (c *bare) Header(key string) []string { return metadata.ValueFromOutgoingContext(c.ctx, key) }

func (c *bare) free() {
	c.ctx, c.request, c.held, c.router = nil, policy.Request{}, router.Reservation{}, nil
	bares.Put(c)
}

// quick is what ends the quick reservations of one replica; made once, so that
// picking does not allocate.
type quick struct {
	router  *router.Router
	replica *policy.Replica
	done    func(balancer.DoneInfo)
}

func (h *host) quickFor(rt *router.Router, rep *policy.Replica) *quick {
	if q := h.quick.Load(); q != nil && q.replica == rep && q.router == rt {
		return q
	}
	health, reserved := rt.Outlier(rep), rt.Quick()
	q := &quick{rt, rep, func(i balancer.DoneInfo) {
		call.EndedQuick(reserved, rep, i)
		if i.Err != nil || i.BytesReceived && health.Suspected() {
			reserved.Ended(rep, policy.Outcome{Err: i.Err, Sent: i.BytesSent, Fault: fault.Of(i.Err)})
		}
	}}
	h.quick.Store(q)
	return q
}

func (p *picker) sendQuick(
	info balancer.PickInfo, b *call.Binding, key *policy.Request, rep *policy.Replica, why policy.Reason,
) (balancer.PickResult, error) {
	h := hostOf(rep)
	res, err := h.send(info)
	if err != nil {
		b.Router.Quick().Release(rep)
		return res, err
	}
	call.NoteQuick(info.Ctx, b, key, rep, why)
	res.Done = chain(res.Done, h.quickFor(b.Router, rep).done)
	return res, nil
}

// pickBare routes by metadata alone.
func (p *picker) pickBare(info balancer.PickInfo, route *call.Route) (balancer.PickResult, error) {
	p.lb.described.Do(func() {
		if p.lb.owner.Load() == nil {
			p.lb.announce(p.lb.bare)
		}
	})
	binding := p.lb.binding.Load()
	if q := route.Bare(binding.Uses); q != nil {
		if rep, why, ok := binding.Router.Quick().Pick(q); ok {
			return p.sendQuick(info, binding, q, rep, why)
		}
	}
	c := newBare()
	c.ctx, c.router = info.Ctx, binding.Router
	c.request.State().Origin = c
	binding.ReadMetadata(info.Ctx, route, &c.request)
	if binding.Uses&policy.UsesPrompt != 0 {
		p.lb.warnBare()
	}
	if err := binding.Router.Reserve(info.Ctx, &c.request, &c.held, router.How{NoWait: true}); err != nil {
		err = call.Explain(err, &c.request, binding.Router.View())
		c.free()
		if err == router.ErrClosed && p.lb.binding.Load() != binding {
			return p.pickBare(info, route) // the Router was replaced just now
		}
		return p.refuse(binding, err)
	}
	res, err := hostOf(c.held.Decision.Replica).send(info)
	if err != nil {
		c.held.Withdraw(&c.request)
		c.free()
		return res, err
	}
	call.Note(info.Ctx, nil, binding, route, &c.request, &c.held.Decision)
	res.Metadata = call.RankMetadata(info.Ctx, &c.held.Decision)
	res.Done = chain(res.Done, c.done)
	return res, nil
}
