package kvevents

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/eventsource"
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

// Remove takes a stream that has applied nothing away from the replica.
func (s *Stream) Remove() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams = slices.DeleteFunc(s.streams, func(x *Stream) bool { return x == s })
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

// clear forgets what the stream has passed on of ranks, of all without any.
func (s *Stream) clear(ranks ...int) {
	s.applying.Lock()
	defer s.applying.Unlock()
	for rank, t := range s.translators {
		if len(ranks) == 0 || slices.Contains(ranks, rank) {
			t.clear()
		}
	}
	s.publish(func(st *Status) { st.Next = 0 })
}

// lose is clear because something was lost, and logs it.
func (s *Stream) lose(ranks ...int) {
	s.Logger.Warn("warmpath: KV events were lost, or the engine was restarted: its cache counts as empty",
		"replica", s.Attrs.ID, "source", s.source, "ranks", ranks)
	s.clear(ranks...)
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

// Status is how one stream of events is doing. Counts are since it began.
type Status struct {
	Replica string // id
	Rank    int    // data-parallel rank, where the stream has one

	Connected   bool
	Connections int64  // how often the connection was made
	Problem     string // why it is not connected, or cannot be asked; "" if all is well

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
	// tokens, medium, adapter, content, group, block_size, superblock.
	Unreadable Unreadable

	model string
}

// statuses returns the status of every stream.
func (r *Replica) statuses() []Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]Status, len(r.streams))
	for i, s := range r.streams {
		all[i] = s.status
	}
	return all
}

// MaxRanks bounds the data-parallel ranks of a replica.
const MaxRanks = 1024

// MaxMessage is the largest message that is taken, in bytes. A larger one ends the connection.
const MaxMessage = 4 << 20

// Decoder reads a message of a socket, until the context ends.
type Decoder func(ctx context.Context, payload []byte) Batch

// followZeroMQ follows the ZeroMQ sockets of a replica until the context ends; nil where none can.
var followZeroMQ func(ctx context.Context, r *Replica, src eventsource.Source)

// RegisterZeroMQ makes ZeroMQ sockets usable. It is called while packages are initialized.
func RegisterZeroMQ(follow func(ctx context.Context, r *Replica, src eventsource.Source)) {
	followZeroMQ = follow
}

// ErrNotLinked is the error of a source whose transport is not linked into the program.
var ErrNotLinked = errors.New(`ZeroMQ is not linked: import _ "github.com/warmpath/warmpath/balancer/kvevents"`)

// ParseSource reads where a replica's events come from. The error begins with the field at fault.
func ParseSource(a policy.Attributes) (eventsource.Source, error) {
	src, err := eventsource.Parse(a)
	if err == nil && src.Subscribe == "" && followZeroMQ == nil {
		return src, fmt.Errorf("kv_events: %q: %w", a.KVEvents, ErrNotLinked)
	}
	return src, err
}
