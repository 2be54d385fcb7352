package router

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/internal/router/state"
)

// A lineage is the Routers of one host, of which each has replaced the one before: their replicas share their books, and
// the latest has the requests that wait.
type lineage struct{ latest atomic.Pointer[Router] }

// Inherit puts the Router in the place of another one. What is reserved in that one counts here, in the bounds and in
// the load, until it is given back, and then makes room here. It is called before the fleet is set.
func (r *Router) Inherit(old *Router) {
	old.mu.Lock()
	books := make(map[string]*state.Book, len(old.Fleet.known))
	for id, l := range old.Fleet.known {
		books[id] = l.Book
	}
	line := old.lineage
	old.mu.Unlock()
	r.mu.Lock()
	for id, book := range books {
		if r.Fleet.known[id] == nil {
			r.Fleet.known[id] = newLive(book)
		}
	}
	r.lineage = line // before any reservation
	r.mu.Unlock()
	line.latest.Store(r)
}

// Inherits reports whether the Router has the books of the other one.
func (r *Router) Inherits(other *Router) bool {
	return r.lineage == other.lineage
}

// end ends a reservation of the lineage under the lock, so that no request that comes takes the room of those that wait,
// and serves these.
func (r *Router) end(b *Reservation) {
	r.mu.Lock()
	defer r.mu.Unlock() // also when the policy panics
	b.end()
	r.queue.serve(b.Decision.Replica)
}
