package routing

import "context"

// A Policy picks a replica. One Policy value belongs to one Router.
type Policy interface {
	// Prepare does the work that needs no lock: it hashes the prompt, searches
	// the index, and leaves what it found in q.Prepared. It is called from the
	// goroutine of the call, concurrently for different requests, and again for
	// the same request when the fleet has changed since: by then the prompt may
	// have been dropped, so what is needed of it stays in q.Prepared. It is
	// called for a pinned request only where the policy is a RouteObserver. A policy may call out here if its Uses say so:
	// the context then carries a deadline. An error is counted and does not fail
	// the request: Choose is called all the same.
	Prepare(ctx context.Context, q *Request, v *View) error

	// Choose picks among the replicas that are available, or says whom it would
	// wait for. It is called under the Router's lock, one call at a time, and so
	// is short, does not block and does not allocate while a replica is available.
	// q.Prepared may stem from an older View: replicas in it may have left. The
	// Router corrects an answer that is not allowed: it waits for a replica that
	// is only full, and otherwise, as for a policy that would wait although one of
	// those it waits for has room, picks the least loaded that is available.
	Choose(q *Request, v *View) Decision
}

// Uses says what a policy looks at, so that a host does not dig for the rest.
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

// An OngoingReader is a Policy that goes by View.LeastOfTwo and not by View.Load: reports of load are kept for it too.
type OngoingReader interface{ ReadsOngoing() }

// A RouteObserver is notified of every reservation that a call got, once, after it was
// made and outside the Router's lock, by the goroutine of the call. That of a pinned
// request is a route as well, which Choose was not asked about.
type RouteObserver interface {
	Routed(q *Request, d Decision)
}

// A CompletionObserver is called once at the end of every booking for which a RouteObserver
// is called, and of no other, whatever a Rollout has become meanwhile. It is outside the
// Router's lock. Where the Outcome is not [Outcome.Prefilled], the policy takes back what
// it has learned from the route.
type CompletionObserver interface {
	Completed(q *Request, d Decision, o Outcome)
}

// A WithdrawalObserver is a Policy that notes its picks in Choose. Withdrawn is called under
// the Router's lock for a pick of Choose that is not used: the Router corrects it, or the
// booking ends without being sent. What Choose noted for it goes. It must not call the Router.
type WithdrawalObserver interface {
	Withdrawn(q *Request, d Decision)
}

// A FleetObserver is notified of every change of the fleet and of its connections, under the Router's lock and before any
// pick sees the new View. It must not call the Router.
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

// An IndexReporter is a Policy with a prefix index; IndexStats is safe from any
// goroutine.
type IndexReporter interface{ IndexStats() IndexStats }

// IndexStats describe a prefix index.
type IndexStats struct {
	Bytes, Blocks, Evictions int64
	// LiveEvictions are those of blocks that the engine, as it told, still has.
	LiveEvictions int64
	// Refused are changes told in blocks of another size than prompts are cut in.
	Refused int64
}

// A Policy that holds resources is an io.Closer: the Router closes it once, after the
// calls of its other methods that are under way. Router.Close waits up to CloseTimeout.
