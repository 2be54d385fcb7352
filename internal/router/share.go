package router

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/policy"
)

// A RouteSink takes where prompts were prefilled: the replica, the data-parallel rank (0 where
// none was chosen), and the superblocks, each the prefix of the next, which it must not
// change. It is called by many goroutines, outside the Router's lock.
type RouteSink func(to *policy.Replica, rank int, superblocks []uint64)

// routes shares where prompts were prefilled.
type routes struct {
	sink     atomic.Pointer[RouteSink]
	reporter policy.SuperblockReporter // nil = nothing is shared
}

// note keeps what is to be shared of a reservation until its replica answers.
func (s *routes) note(q *policy.Request, d *policy.Decision) {
	if s.reporter != nil {
		d.State().Route = s.reporter.Superblocks(q, nil)
	}
}

// share shares what was kept of a reservation whose replica has the prompt.
func (s *routes) share(d *policy.Decision, route []uint64) {
	if sink := s.sink.Load(); sink != nil && len(route) > 0 {
		(*sink)(d.Replica, max(d.Rank(), 0), route)
	}
}

// ShareRoutes gives a sink every reservation from now on whose prompt has superblocks, when its
// replica answers; nil = none. It does nothing where the policy is no [policy.SuperblockReporter] and
// [policy.RouteObserver].
func (r *Router) ShareRoutes(sink RouteSink) {
	if sink == nil {
		r.routes.sink.Store(nil)
		return
	}
	r.routes.sink.Store(&sink)
}

// SharesRoutes reports whether ShareRoutes does anything.
func (r *Router) SharesRoutes() bool { return r.routes.reporter != nil && r.own.route != nil }

// shareRoute shares the route of a reservation whose replica answers, once.
func (b *Reservation) shareRoute() {
	r := b.router
	if r.routes.sink.Load() == nil {
		return
	}
	r.mu.Lock()
	route := b.Decision.State().Route
	if route != nil {
		b.Decision.State().Route = nil
	}
	r.mu.Unlock()
	r.routes.share(&b.Decision, route)
}
