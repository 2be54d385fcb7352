package router

import (
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
)

// A RouteSink takes where prompts were prefilled: the replica, the data-parallel rank (0 where
// none was chosen), and the superblocks, each the prefix of the next, which it must not
// change. It is called by many goroutines, outside the Router's lock.
type RouteSink func(to *policy.Replica, rank int, superblocks []uint64)

// Routes shares where prompts were prefilled.
type Routes struct {
	sink  atomic.Pointer[RouteSink]
	index bool // the policy has an index of caches that other clients add to; else nothing is shared
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
		if superblocks, _ := b.Superblocks(nil); superblocks != nil {
			part.OfDecision(d).Route = &state.Route{Superblocks: superblocks}
		}
	}
}

// send shares what was kept of a reservation whose replica has the prompt, once.
func (s *Routes) send(d *policy.Decision) {
	route := part.OfDecision(d).Route
	if route == nil || route.Shared.Swap(true) {
		return
	}
	if sink := s.sink.Load(); sink != nil {
		(*sink)(d.Replica, max(d.Rank(), 0), route.Superblocks)
	}
}

// Share gives a sink every reservation from now on whose prompt has superblocks, when its
// replica answers; nil = none. It does nothing if the policy has no index that other clients add to.
func (s *Routes) Share(sink RouteSink) {
	if sink == nil {
		s.sink.Store(nil)
		return
	}
	s.sink.Store(&sink)
}

// Shares reports whether Share does anything.
func (s *Routes) Shares() bool { return s.index }

// A Route is where a prompt went, in the grain of a coarse index.
type Route struct {
	Replica     string // id
	Rank        int    // data-parallel; 0 where none was chosen
	Superblocks []uint64
}

// Bounds of a [RouteLog] between two calls of Take.
const (
	MaxRoutes      = 4096
	MaxRouteHashes = 65_536
)

// A RouteLog collects routes until they are taken, each once: its Add is a [RouteSink].
// What is beyond its bounds is left out. The zero value is ready. Safe for use by many
// goroutines.
type RouteLog struct {
	// mu guards what follows. Nothing is locked or called under it.
	mu     sync.Mutex
	routes []Route
	hashes int
	seen   map[routed]struct{}
}

// routed identifies a route: the last superblock stands for those before it.
type routed struct {
	replica string
	rank    int
	last    uint64
}

// Add notes a route.
func (l *RouteLog) Add(to *policy.Replica, rank int, superblocks []uint64) {
	key := routed{to.ID, rank, superblocks[len(superblocks)-1]}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.seen[key]; ok || len(l.routes) >= MaxRoutes || l.hashes+len(superblocks) > MaxRouteHashes {
		return
	}
	if l.seen == nil {
		l.seen = make(map[routed]struct{})
	}
	l.seen[key] = struct{}{}
	l.hashes += len(superblocks)
	l.routes = append(l.routes, Route{to.ID, rank, superblocks})
}

// Take returns what was noted since it was called last.
func (l *RouteLog) Take() []Route {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.routes
	l.routes, l.hashes = nil, 0
	clear(l.seen)
	return all
}
