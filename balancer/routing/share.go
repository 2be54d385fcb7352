package routing

import "sync"

// A SuperblockReporter is a Policy that knows the superblocks of the prompts that it
// hashes. Superblocks appends the hashes that end one, of a request that is prepared, and
// returns to as it is where there are none. It is called by the goroutine of the call,
// before Routed.
type SuperblockReporter interface {
	Superblocks(q *Request, to []uint64) []uint64
}

// A RouteSink is told where prompts went: the replica, the data-parallel rank (0 where
// none was chosen), and the superblocks, each the prefix of the next, which it must not
// keep. It is called by many goroutines, outside the Router's lock.
type RouteSink func(to *Replica, rank int, superblocks []uint64)

// ShareRoutes has a sink told of every booking from now on whose prompt has superblocks;
// nil = none. It does nothing where the policy is no [SuperblockReporter] and
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
	_, knows := r.opts.Policy.(SuperblockReporter)
	return knows && r.routeObs != nil
}

var superblocks = sync.Pool{New: func() any { return new([]uint64) }}

// shareRoute tells the sink of a route.
func (r *Router) shareRoute(sink RouteSink, q *Request, b *Booking) {
	p, ok := r.opts.Policy.(SuperblockReporter)
	if !ok {
		return
	}
	hashes := superblocks.Get().(*[]uint64)
	defer superblocks.Put(hashes)
	if *hashes = p.Superblocks(q, (*hashes)[:0]); len(*hashes) > 0 {
		sink(b.Decision.Replica, max(b.Decision.Rank(), 0), *hashes)
	}
}
