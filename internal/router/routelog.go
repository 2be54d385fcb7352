package router

import "github.com/warmpath/warmpath/balancer/policy"

import "sync"

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
