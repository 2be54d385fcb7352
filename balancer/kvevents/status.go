package kvevents

import (
	"fmt"
	"time"
)

// Status is how one stream of events is doing. Counts are since it began.
type Status struct {
	Replica string // id
	Rank    int    // data-parallel rank, where the stream has one
	Source  string // endpoint, or gRPC method

	Connected   bool
	Connections int64  // how often the connection was made
	Problem     string // why it is not connected, or what is refused; "" if all is well

	Messages int64  // applied
	Next     uint64 // sequence number expected next; 0 before the first
	Queued   int    // received and not applied yet
	// Lag is how long the message applied last had waited.
	Lag time.Duration

	Events      int64 // read
	Blocks      int   // held now, as far as they are known
	BlockTokens int   // the engine's block size; 0 before the first block

	Gaps         int64 // holes in the sequence
	Replays      int64 // replays asked for
	ReplayErrors int64 // replays that failed
	Restarts     int64 // of the engine
	Clears       int64 // times that all of it was forgotten since something was lost or restarted
	Orphaned     int64 // stores whose parent was never known
	Forgotten    int64 // blocks forgotten to stay in the budget

	// Unreadable counts what could not be read or is not for the index, by kind: frames, batch, empty, event, kind,
	// tokens, medium, adapter, content, group, block_size.
	Unreadable map[string]int64
}

// snapshot returns the status now. The caller holds mu.
func (s *stream) snapshot() Status {
	st := s.status
	sum := s.gone
	for _, t := range s.translators {
		sum.events += t.count.events
		sum.orphaned += t.count.orphaned
		sum.forgotten += t.count.forgotten
		sum.bad.add(&t.count.bad)
		st.Blocks += t.blocks.lists[0].n
		st.BlockTokens = max(st.BlockTokens, t.size)
	}
	st.Events, st.Orphaned, st.Forgotten = sum.events, sum.orphaned, sum.forgotten
	st.Unreadable = sum.bad.named()
	if n := sum.bad[badSize]; n > 0 && st.Problem == "" {
		st.Problem = fmt.Sprintf("%d events refused: their block size is not the %d tokens of the model's other replicas", n, s.sizes.size(s.model))
	}
	return st
}

// Status returns the status of every stream of the replica.
func (r *replica) Status() []Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]Status, len(r.streams))
	for i, s := range r.streams {
		all[i] = s.snapshot()
	}
	return all
}
