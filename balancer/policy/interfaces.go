package policy

import "context"

// A Policy picks a replica. One Policy value belongs to one Router. Only Choose is needed.
type Policy struct {
	// Name is the name in configs and logs; [New] sets it.
	Name string
	// Uses is what the policy looks at, so that a host does not read the rest; 0 = nothing of the request.
	Uses Uses

	// Prepare does the work that needs no lock: it hashes the prompt, searches
	// the index, and leaves what it found in q.Prepared; nil = there is no such work. It is called from the
	// goroutine of the call, concurrently for different requests, and again for
	// the same request when the fleet has changed since: by then the prompt may
	// have been dropped, so what is needed of it stays in q.Prepared. It is
	// called for a pinned request only where the policy observes routes. A policy may call out here if its Uses
	// include CallsOut: the context then carries a deadline. An error is counted and does not fail
	// the request: Choose is called all the same.
	Prepare func(ctx context.Context, q *Request, v View) error

	// Choose picks among the replicas that are available, or returns which it would
	// wait for. It is called under the Router's lock, one call at a time, and so
	// is short, does not block and does not allocate while a replica is available.
	// q.Prepared may stem from an older View: replicas in it may have left. The
	// Router corrects an answer that is not allowed: it waits for a replica that
	// is only full, and otherwise, as for a policy that would wait although one of
	// those it waits for has room, picks the least loaded that is available.
	Choose func(q *Request, v View) Decision

	// Preview answers as Choose would, and leaves nothing behind: no rotation moves, nothing is noted. It is called
	// like Choose: after it for the further candidates of the same request, with the ones before excluded; and for a
	// request that Choose was not called for, with one replica allowed, for the tokens matched there. nil = the policy
	// cannot.
	Preview func(q *Request, v View) Decision

	// Observer is what the policy is notified of.
	Observer Observer
	// IndexStats describes the policy's prefix index, for metrics; nil = it has none. Safe from any goroutine.
	IndexStats func() IndexStats
	// Close gives back what the policy holds; nil = nothing. The Router calls it once, after the calls of the other
	// functions that are under way.
	Close func() error
}

// Uses is what a policy looks at, so that a host does not read the rest.
type Uses uint8

const (
	UsesSession Uses = 1 << iota // Request.Session
	UsesPrompt                   // Request.Prompt
	CallsOut                     // Prepare may block: it is given a deadline
	UsesLoad                     // View.Load: rates are learned and reports of load are kept
	UsesOngoing                  // View.LeastOfTwo: reports of load are kept
	SharesByKey                  // a replica gets the requests of its keys however idle it is: no slow start
)

// An Observer is what a policy is notified of. A nil function is not called.
type Observer struct {
	// Routed is called once for every reservation of a call, after it was made and outside the Router's lock, by the
	// goroutine of the call; for a pinned request too, for which Choose was not called.
	Routed func(q *Request, d Decision)
	// Completed is called once at the end of every reservation that Routed was called for, and of no other, also where
	// the policy decides another share of the requests meanwhile. It is outside the Router's lock. Where the Outcome is
	// not [Outcome.Prefilled], the policy takes back what it has learned from the route.
	Completed func(q *Request, d Decision, o Outcome)
	// Withdrawn is for a policy that notes its picks in Choose. It is called under the Router's lock for a pick of
	// Choose that is not used: the Router corrects it, or the reservation ends without being sent. The policy drops
	// what Choose noted for it. It must not call the Router.
	Withdrawn func(q *Request, d Decision)
	// FleetChanged is called for every change of the fleet and of its connections, under the Router's lock and before
	// any pick sees the new View. It must not call the Router.
	FleetChanged func(FleetChange)
	// CacheChanged is called with what is known of the replicas' caches beyond the policy's own routes: outside the
	// Router's lock, in the order of the changes of each replica, concurrently with everything else. It must not keep
	// the slices.
	CacheChanged func([]CacheChange)
	// CapacityChanged is called with the size of a replica's KV cache, when it is first known and when it changes:
	// outside the Router's lock, concurrently with everything else.
	CapacityChanged func(id string, kvTokens int)
}

// A FleetChange lists the replicas that a change concerns, and no others. The observer must not change the lists.
type FleetChange struct {
	// Added joined the fleet and Removed left it; a replica that was restarted is in both. Removed ones are not in
	// Disconnected too.
	Added, Removed []*Replica
	// Connected can be picked now, and Disconnected no longer: the connection came up, or died. An added replica is
	// not connected yet, unless it was restarted: see [Replica.Connected].
	Connected, Disconnected []*Replica
}

// IndexStats describe a prefix index.
type IndexStats struct {
	Bytes, Blocks, Evictions int64
	// LiveEvictions are those of blocks that the engine, by its reports, still has.
	LiveEvictions int64
	// Refused are changes reported in blocks of another size than prompts are cut in.
	Refused int64
}
