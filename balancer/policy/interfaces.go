package policy

import "context"

// A Policy picks a replica. One Policy value belongs to one Router.
//
// A Policy that holds resources is an io.Closer: the Router closes it once, after the
// calls of its other methods that are under way.
type Policy interface {
	// Prepare does the work that needs no lock: it hashes the prompt, searches
	// the index, and leaves what it found in q.Prepared. It is called from the
	// goroutine of the call, concurrently for different requests, and again for
	// the same request when the fleet has changed since: by then the prompt may
	// have been dropped, so what is needed of it stays in q.Prepared. It is
	// called for a pinned request only where the policy is a RouteObserver. A policy may call out here if its Uses
	// include CallsOut: the context then carries a deadline. An error is counted and does not fail
	// the request: Choose is called all the same.
	Prepare(ctx context.Context, q *Request, v View) error

	// Choose picks among the replicas that are available, or returns which it would
	// wait for. It is called under the Router's lock, one call at a time, and so
	// is short, does not block and does not allocate while a replica is available.
	// q.Prepared may stem from an older View: replicas in it may have left. The
	// Router corrects an answer that is not allowed: it waits for a replica that
	// is only full, and otherwise, as for a policy that would wait although one of
	// those it waits for has room, picks the least loaded that is available.
	Choose(q *Request, v View) Decision
}

// Uses is what a policy looks at, so that a host does not read the rest.
type Uses uint8

const (
	UsesSession Uses = 1 << iota // Request.Session
	UsesPrompt                   // Request.Prompt; Prepare is called
	CallsOut                     // Prepare is called and may block: it is given a deadline
	UsesLoad                     // View.Load: rates are learned and reports of load are kept
	SharesByKey                  // a replica gets the requests of its keys however idle it is: no slow start, which would move them twice
)

// A KeyUser is a Policy that looks at less than everything. A policy that does
// not implement it is taken to use everything.
type KeyUser interface{ Uses() Uses }

// An OngoingReader is a Policy that uses View.LeastOfTwo and not View.Load: reports of load are kept for it too.
type OngoingReader interface{ ReadsOngoing() }

// A QuickChooser is a Policy that can choose for a plain request without the
// Router's lock: one that names no replica, model or adapter, on its first
// attempt, while no request waits. It is for hosts that pick and release in tens of
// nanoseconds and keep nothing in between.
type QuickChooser interface {
	// ChooseQuick is Choose, called by many goroutines at once. It returns nil to
	// leave the request to Choose: when it does not find an available replica at
	// once, or when tiers matter. It uses no randomness of the View's.
	ChooseQuick(q *Request, v View) (*Replica, Reason)
}

// A Previewer is a Policy that can answer as Choose would, and leave nothing
// behind: no rotation moves, nothing is noted. Preview is called like Choose, after it,
// for the same request, with those excluded that are known already, and for a request
// that Choose was not called for, with one replica allowed, for the tokens matched there.
type Previewer interface {
	Preview(q *Request, v View) Decision
}

// A RouteObserver is notified of every reservation that a call got, once, after it was
// made and outside the Router's lock, by the goroutine of the call. That of a pinned
// request is a route as well, for which Choose was not called.
type RouteObserver interface {
	Routed(q *Request, d Decision)
}

// A CompletionObserver is called once at the end of every reservation for which a RouteObserver
// is called, and of no other, whatever a Rollout has become meanwhile. It is outside the
// Router's lock. Where the Outcome is not [Outcome.Prefilled], the policy takes back what
// it has learned from the route.
type CompletionObserver interface {
	Completed(q *Request, d Decision, o Outcome)
}

// A WithdrawalObserver is a Policy that notes its picks in Choose. Withdrawn is called under
// the Router's lock for a pick of Choose that is not used: the Router corrects it, or the
// reservation ends without being sent. What Choose noted for it goes. It must not call the Router.
type WithdrawalObserver interface {
	Withdrawn(q *Request, d Decision)
}

// A FleetObserver is notified of every change of the fleet and of its connections, under the Router's lock and before
// any pick sees the new View. It must not call the Router.
type FleetObserver interface {
	FleetChanged(FleetChange)
}

// A FleetChange lists the replicas that a change concerns, and no others. The observer must not change the lists.
type FleetChange struct {
	// Added joined the fleet and Removed left it; a replica that was restarted is in both. Removed ones are not in
	// Disconnected too.
	Added, Removed []*Replica
	// Connected can be picked now, and Disconnected no longer: the connection came up, or died. An added replica is
	// not connected yet, unless it was restarted; see Replica.Connected.
	Connected, Disconnected []*Replica
}

// A CacheObserver is a Policy that can use what is known of the replicas' caches
// beyond its own routes. CacheChanged is called outside the Router's lock, in the
// order of the changes of each replica, concurrently with everything else. It must
// not keep the slices.
type CacheObserver interface {
	CacheChanged([]CacheChange)
}

// A CapacityObserver is a Policy that bounds what it takes a replica to hold.
// ReplicaCapacity is called outside the Router's lock, concurrently with everything else,
// when the size is first known and when it changes.
type CapacityObserver interface {
	ReplicaCapacity(id string, kvTokens int)
}

// A PromptHasher is a Policy that cuts prompts into hashed blocks. PromptHashes returns those of a request that was
// prepared, which are not written again; nil where there are none. It is called by the goroutine of the call.
type PromptHasher interface{ PromptHashes(q *Request) *Hashed }

// A SuperblockReporter is a Policy that computes the superblocks of the prompts that it
// hashes. Superblocks appends the hashes that end one, of a request that is prepared, and
// returns to as it is where there are none. It is called by the goroutine of the call,
// before Routed.
type SuperblockReporter interface {
	Superblocks(q *Request, to []uint64) []uint64
}

// An IndexReporter is a Policy with a prefix index; IndexStats is safe from any
// goroutine.
type IndexReporter interface{ IndexStats() IndexStats }

// IndexStats describe a prefix index.
type IndexStats struct {
	Bytes, Blocks, Evictions int64
	// LiveEvictions are those of blocks that the engine, by its reports, still has.
	LiveEvictions int64
	// Refused are changes reported in blocks of another size than prompts are cut in.
	Refused int64
}
