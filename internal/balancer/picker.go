package balancer

import (
	"errors"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/call"
	"github.com/warmpath/warmpath/internal/loadprobe"
	"github.com/warmpath/warmpath/internal/router"
)

var logger = grpclog.Component("warmpath")

// picker asks the Router. It holds no state: a new one is published to make
// gRPC pick again for the calls that are blocked.
type picker struct{ lb *lb }

// Pick picks a replica, or uses the reservation that the call brought along.
func (p *picker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	scope, route := call.From(info.Ctx)
	if scope == nil {
		return p.pickBare(info, route)
	}
	if h := scope.Handle(); h != p.lb.owner.Load() && !p.lb.serves(h) {
		return p.pickBare(info, scope.Beyond(route))
	}
	rpc := scope.Enter()
	if rpc == nil { // an attempt after the end
		return p.pickBare(info, route.Unreported())
	}
	defer scope.Leave()
	binding := p.lb.binding.Load()
	claimed, ready, err := rpc.Claim(info.Ctx, route, binding, connection)
	if err != nil {
		return p.refuse(binding, err)
	}
	return send(info, claimed, ready)
}

// send sends an attempt that has its reservation.
func send(info balancer.PickInfo, c *call.Call, ready bool) (balancer.PickResult, error) {
	res, err := hostOf(c.Decision().Replica).state.Load().Picker.Pick(info)
	if !ready {
		// The pick opens the connection. Should it have become ready meanwhile, the
		// picker with that state is on its way.
		if err == nil && res.Done != nil {
			res.Done(balancer.DoneInfo{})
		}
		return balancer.PickResult{}, balancer.ErrNoSubConnAvailable
	}
	if err != nil { // the connection went away since the Router was updated: a new picker comes
		c.Finished(balancer.DoneInfo{})
		return balancer.PickResult{}, balancer.ErrNoSubConnAvailable
	}
	if c.Decision().Replica.Ranks > 1 {
		res.Metadata = c.RankMetadata(info.Ctx)
	}
	res.Done = chain(res.Done, c.OnDone())
	return res, nil
}

// host is what a Router has of an endpoint. The Router may outlive the balancer, so nothing here leads to the channel
// once its state is gone.
type host struct {
	// state is that of the connection, with its picker; replaced on every change.
	state  atomic.Pointer[balancer.State]
	probed loadprobe.State
}

// gone is the state of an endpoint without a connection.
var gone = &balancer.State{
	ConnectivityState: connectivity.Shutdown, Picker: base.NewErrPicker(balancer.ErrNoSubConnAvailable),
}

func hostOf(r *policy.Replica) *host { return r.Host().(*host) }

// connectivity is the state of the connection; Shutdown once it is gone for good.
func (h *host) connectivity() connectivity.State { return h.state.Load().ConnectivityState }

func connection(r *policy.Replica) connectivity.State { return hostOf(r).connectivity() }

// refuse turns the Router's error into one that makes gRPC do the right thing:
// a status fails the call at once, another error lets wait_for_ready wait.
func (p *picker) refuse(b *call.Binding, err error) (balancer.PickResult, error) {
	if (err == router.ErrNotConnected || errors.Is(err, router.ErrNoSuchReplica)) && incomplete(b.Router) {
		return balancer.PickResult{}, balancer.ErrNoSubConnAvailable
	}
	switch err {
	case router.ErrNotConnected:
		if len(b.Router.View().Connected()) > 0 {
			return balancer.PickResult{}, errGone
		}
		return balancer.PickResult{}, balancer.ErrNoSubConnAvailable
	case router.ErrConnecting: // a picker comes with each change of a connection
		return balancer.PickResult{}, balancer.ErrNoSubConnAvailable
	case router.ErrClosed: // the picker of the next one comes, or has come
		return balancer.PickResult{}, balancer.ErrNoSubConnAvailable
	case router.ErrFull:
		return balancer.PickResult{}, status.Error(codes.ResourceExhausted, "warmpath: "+err.Error()+
			"; calls wait for room when the channel has the interceptors of client.New or client.DialOptions")
	}
	return balancer.PickResult{}, call.Status(err)
}

// incomplete reports whether replicas of a fleet with roles are being connected: some that can do nothing alone may be
// connected before the others.
func incomplete(r *router.Router) bool {
	return r.Fleet.Divided() && slices.ContainsFunc(r.View().Replicas(), func(rep *policy.Replica) bool {
		return connection(rep) == connectivity.Connecting
	})
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

// pickBare routes by metadata alone.
func (p *picker) pickBare(info balancer.PickInfo, route *call.Route) (balancer.PickResult, error) {
	p.lb.described.Do(func() {
		if p.lb.owner.Load() == nil {
			p.lb.announce(p.lb.bare)
		}
	})
	binding := p.lb.binding.Load()
	if binding.Uses&policy.UsesPrompt != 0 {
		p.lb.warnBare()
	}
	c := p.lb.handle().Bare(info.Ctx, route)
	_, ready, err := c.Claim(info.Ctx, route, binding, connection)
	if err != nil {
		return p.refuse(binding, err)
	}
	return send(info, c, ready)
}
