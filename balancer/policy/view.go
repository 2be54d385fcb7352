package policy

import "time"

// A View is an immutable snapshot of the whole fleet in a stable order, with a
// compact list of the replicas that are connected. What a Replica reports of
// itself is live. The Router implements it.
type View interface {
	// Epoch numbers the membership: it grows when replicas or their attributes
	// change, and not when a connection comes or goes.
	Epoch() uint64
	// Replicas returns the whole fleet in its stable order. Read only.
	Replicas() []*Replica
	// Connected returns the connected replicas in the same order. Read only.
	Connected() []*Replica
	// ByID returns the replica with the id, or nil.
	ByID(id string) *Replica
	// Now returns the Router's time.
	Now() time.Time
	// IntN returns a random number in [0,n) from the Router's source. Choose only.
	IntN(n int) int
	// Lot returns a random number that stays with the request, for a policy that finds no key in it. Choose only.
	Lot(q *Request) uint64

	// Load returns the load of a replica in tokens: uncached prompt tokens reserved
	// and not yet prefilled, plus the request cost for each request, divided by its rate.
	// Requests of other clients count as far as they are known.
	Load(r *Replica) float64
	// PeerDrift returns how much of the peer load of a replica changes until it is used, in
	// the mean, in tokens, whatever the replicas' rates. All clients act on the same
	// reports, so differences of load that are smaller must not decide. O(1).
	PeerDrift() float64

	// Available reports whether the replica may be given the request now: it is
	// connected, has room, is neither ejected nor draining, and the request may use it.
	Available(q *Request, r *Replica) bool
	// Allowed reports whether the request may use the replica, whether or not it is
	// connected and has room: it is neither ejected nor draining, not excluded, and serves
	// the model. A draining replica keeps, for a time, the sessions that it has.
	// It shows a policy that walks a rendezvous order which replicas to wait for.
	Allowed(q *Request, r *Replica) bool
	// Pool returns the i-th group of replicas to look in, most preferred first, and
	// false after the last. Groups come by adapter (those that have it loaded, those
	// with the fewest adapters, all) or else by locality (our node, our zone, all);
	// after a failed attempt first without the replicas tried, then with them. The
	// last group holds every connected replica.
	Pool(q *Request, i int) (Pool, bool)

	// LeastLoaded returns the available replica with the least load in the first
	// pool that has one, or nil. Ties go to the first in the fleet's order. O(replicas).
	LeastLoaded(q *Request) *Replica
	// LeastOfTwo returns the one with fewer requests under way, as far as they are known
	// (own reservations, those of other clients, what the replica reports), of two distinct available
	// replicas drawn at random, or nil when none is available. It is the whole of
	// power of two choices, and what other policies do with a request that lacks
	// their key. The two come from the first pool that has an available replica; a
	// tie goes to the one drawn first. O(1) as long as not most of a pool is
	// unavailable, else O(pool). Does not allocate. Choose only.
	LeastOfTwo(q *Request) *Replica
}

// A Pool is a group of replicas in which to look for one. Those that are not connected are not available.
type Pool struct {
	Replicas []*Replica
	Whole    bool // Replicas are all that are connected
	Untried  bool // those that earlier attempts of the call went to are left out
	View     View
	Request  *Request
}

// Takes reports whether the replica is available and wanted in this pool.
func (p Pool) Takes(r *Replica) bool {
	return p.View.Available(p.Request, r) && !(p.Untried && p.Request.Tried(r))
}
