package routing

// A SuperblockReporter is a Policy that knows the superblocks of the prompts that it
// hashes. Superblocks appends the hashes that end one, of a request that is prepared, and
// returns to as it is where there are none. It is called by the goroutine of the call,
// before Routed.
type SuperblockReporter interface {
	Superblocks(q *Request, to []uint64) []uint64
}

// A RouteSink takes where prompts were prefilled: the replica, the data-parallel rank (0 where
// none was chosen), and the superblocks, each the prefix of the next, which it must not
// change. It is called by many goroutines, outside the Router's lock.
type RouteSink func(to *Replica, rank int, superblocks []uint64)

// ShareRoutes gives a sink every booking from now on whose prompt has superblocks, when its
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
	_, knows := r.opts.Policy.(SuperblockReporter)
	return knows && r.routeObs != nil
}

// noteRoute keeps what is to be shared of a booking until its replica answers.
func (r *Router) noteRoute(q *Request, d *Decision) {
	if p, ok := r.opts.Policy.(SuperblockReporter); ok {
		d.route = p.Superblocks(q, nil)
	}
}

// shareRoute shares the route of a booking whose replica answers, once.
func (b *Booking) shareRoute() {
	r := b.router
	if r.sink.Load() == nil {
		return
	}
	r.mu.Lock()
	route := b.Decision.route
	if route != nil {
		b.Decision.route = nil
	}
	r.mu.Unlock()
	r.shareRoute(&b.Decision, route)
}

// shareRoute shares what was kept of a booking whose replica has the prompt.
func (r *Router) shareRoute(d *Decision, route []uint64) {
	if sink := r.sink.Load(); sink != nil && len(route) > 0 {
		(*sink)(d.Replica, max(d.Rank(), 0), route)
	}
}
