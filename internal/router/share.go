package router

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/policy"
)

// A RouteSink takes where prompts were prefilled: the replica, the data-parallel rank (0 where
// none was chosen), and the superblocks, each the prefix of the next, which it must not
// change. It is called by many goroutines, outside the Router's lock.
type RouteSink func(to *policy.Replica, rank int, superblocks []uint64)

// Routes shares where prompts were prefilled.
type Routes struct {
	sink  atomic.Pointer[RouteSink]
	index bool // the policy has a prefix index; else nothing is shared
}

// blocks are what a policy that cuts prompts into hashed blocks leaves in Request.Prepared.
type blocks interface {
	// Hashed returns the prompt as hashes, which are not written again; nil where there are none.
	Hashed() *policy.Hashed
	// Superblocks appends the hashes that end a superblock, if there are any.
	Superblocks(to []uint64) (hashes []uint64, per int)
}

// note keeps what is to be shared of a reservation until its replica answers.
func (s *Routes) note(q *policy.Request, d *policy.Decision) {
	if b, ok := q.Prepared.(blocks); ok && s.index {
		d.State().Route, _ = b.Superblocks(nil)
	}
}

// send shares what was kept of a reservation whose replica has the prompt.
func (s *Routes) send(d *policy.Decision, route []uint64) {
	if sink := s.sink.Load(); sink != nil && len(route) > 0 {
		(*sink)(d.Replica, max(d.Rank(), 0), route)
	}
}

// Share gives a sink every reservation from now on whose prompt has superblocks, when its
// replica answers; nil = none. It does nothing where the policy has no prefix index of its routes.
func (s *Routes) Share(sink RouteSink) {
	if sink == nil {
		s.sink.Store(nil)
		return
	}
	s.sink.Store(&sink)
}

// Shares reports whether Share does anything.
func (s *Routes) Shares() bool { return s.index }

// shareRoute shares the route of a reservation whose replica answers, once.
func (b *Reservation) shareRoute() {
	r := b.router
	if r.Routes.sink.Load() == nil {
		return
	}
	r.mu.Lock()
	route := b.Decision.State().Route
	if route != nil {
		b.Decision.State().Route = nil
	}
	r.mu.Unlock()
	r.Routes.send(&b.Decision, route)
}
