package kvevents

import (
	"context"
	"maps"
	"sync"

	"github.com/warmpath/warmpath/balancer/policy"
)

// A Replica is what the streams of one replica share.
type Replica struct {
	Options
	replays  chan struct{}
	Attrs    policy.Attributes
	instance string // the latest; guarded by Manager.mu
	leaves   bool   // it is to end; guarded by Manager.mu
	cancel   context.CancelFunc
	done     chan struct{} // closed when it has ended

	// applying makes the changes of one replica come one after another, whatever its streams. It guards their batches,
	// translators and counts, and is held while Sink is called. Only the streams' own goroutines take it.
	applying sync.Mutex

	// mu guards streams and the status of each. Nothing is called under it.
	mu      sync.Mutex
	streams []*Stream
}

// Stream is one connection's worth of a replica's events: of one rank, or of those that share a connection.
type Stream struct {
	*Replica
	source string
	rank   int // of batches that do not name one

	translators map[int]*translator
	counts      Status // of all translators, and of messages that reached none; published where status is

	status Status
	warned bool // why there is no connection, since a message came last
}

// NewStream adds a stream to the replica.
func (r *Replica) NewStream(source string, rank int) *Stream {
	s := &Stream{Replica: r, source: source, rank: rank, translators: map[int]*translator{}}
	s.status = Status{
		Replica: r.Attrs.ID, Rank: rank, model: model(r.Attrs), Problem: "its KV events have not been connected yet",
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streams = append(r.streams, s)
	return s
}

// apply takes one message in and passes on what it changed. It stops when the context ends: the stream is then cleared.
func (s *Stream) apply(ctx context.Context, seq uint64, b *Batch) {
	s.applying.Lock()
	defer s.applying.Unlock()
	for kind, n := range b.Bad {
		s.counts.Unreadable.Count(kind, n)
	}
	rank := s.rank
	if b.HasRank {
		rank = b.Rank
	}
	if rank < MaxRanks {
		s.translator(rank).apply(ctx, b.Events)
	} else {
		s.counts.Unreadable.Count(BadBatch, 1)
	}
	s.publish(func(st *Status) {
		s.warned = false
		st.Messages++
		st.Next = seq + 1
	})
}

// translator returns that of a rank. The caller holds applying.
func (s *Stream) translator(rank int) *translator {
	t := s.translators[rank]
	if t == nil {
		t = &translator{stream: s, rank: rank, blocks: newBlocks(s.MaxBytes), groups: map[int]bool{}}
		s.translators[rank] = t
	}
	return t
}

// clear forgets all that the stream has passed on.
func (s *Stream) clear() {
	s.applying.Lock()
	defer s.applying.Unlock()
	for _, t := range s.translators {
		t.clear()
	}
	s.publish(func(st *Status) { st.Next = 0 })
}

// lose forgets all that the stream has passed on, because something was lost, and logs it.
func (s *Stream) lose() {
	s.Logger.Warn("warmpath: KV events were lost, or the engine was restarted: its cache counts as empty",
		"replica", s.Attrs.ID, "source", s.source)
	s.clear()
}

// Unreadable counts a message that never became a payload.
func (s *Stream) Unreadable() {
	s.applying.Lock()
	defer s.applying.Unlock()
	s.counts.Unreadable.Count(BadFrames, 1)
	s.publish(func(*Status) {})
}

// publish makes the counts visible in the status, and changes it. The caller holds applying.
func (s *Stream) publish(do func(*Status)) {
	blocks, size := 0, 0
	for _, t := range s.translators {
		blocks, size = blocks+t.blocks.held, max(size, t.size)
	}
	s.Update(func(st *Status) {
		st.Events, st.Orphaned, st.Forgotten = s.counts.Events, s.counts.Orphaned, s.counts.Forgotten
		st.Unreadable, st.Blocks, st.BlockTokens = maps.Clone(s.counts.Unreadable), blocks, size
		do(st)
	})
}

// Update changes the status.
func (s *Stream) Update(do func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do(&s.status)
}

// Failed notes why there is no connection; nil that there is one. It logs that once, until a message has come: that a
// connection could be opened does not show yet that the engine publishes there.
func (s *Stream) Failed(err error) {
	news := false
	s.Update(func(st *Status) {
		st.Connected = err == nil
		if err == nil {
			st.Problem = ""
			st.Connections++
			return
		}
		st.Problem = err.Error()
		news, s.warned = !s.warned, true
	})
	if news {
		s.Logger.Warn("warmpath: a replica's KV events cannot be had, trying again; logged once until some come",
			"replica", s.Attrs.ID, "source", s.source, "error", err)
	}
}
