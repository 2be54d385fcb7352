package router

import "github.com/warmpath/warmpath/balancer/policy"

// A RouteSink takes where prompts were prefilled: the replica, the data-parallel rank (0 where
// none was chosen), and the superblocks, each the prefix of the next, which it must not
// change. It is called by many goroutines, outside the Router's lock.
type RouteSink func(to *policy.Replica, rank int, superblocks []uint64)

// ShareRoutes gives a sink every reservation from now on whose prompt has superblocks, when its
// replica answers; nil = none. It does nothing where the policy is no [SuperblockReporter] and
// [RouteObserver].
func (r *Router) ShareRoutes(sink RouteSink) {
	if sink == nil {
		r.sink.Store(nil)
		return
	}
	r.sink.Store(&sink)
}

// SharesRoutes reports whether ShareRoutes does anything.
func (r *Router) SharesRoutes() bool {
	_, reports := r.opts.Policy.(policy.SuperblockReporter)
	return reports && r.routeObs != nil
}

// noteRoute keeps what is to be shared of a reservation until its replica answers.
func (r *Router) noteRoute(q *policy.Request, d *policy.Decision) {
	if p, ok := r.opts.Policy.(policy.SuperblockReporter); ok {
		d.State().Route = p.Superblocks(q, nil)
	}
}

// shareRoute shares the route of a reservation whose replica answers, once.
func (b *Reservation) shareRoute() {
	r := b.router
	if r.sink.Load() == nil {
		return
	}
	r.mu.Lock()
	route := b.Decision.State().Route
	if route != nil {
		b.Decision.State().Route = nil
	}
	r.mu.Unlock()
	r.shareRoute(&b.Decision, route)
}

// shareRoute shares what was kept of a reservation whose replica has the prompt.
func (r *Router) shareRoute(d *policy.Decision, route []uint64) {
	if sink := r.sink.Load(); sink != nil && len(route) > 0 {
		(*sink)(d.Replica, max(d.Rank(), 0), route)
	}
}
