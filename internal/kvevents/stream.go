package kvevents

import (
	"context"
	"fmt"
	"maps"
	"sync"
)

// replica is what the streams of one replica share.
type replica struct {
	id    string
	model string
	*shared

	// applying makes the changes of one replica come one after another, whatever its streams. It guards their batches,
	// translators and counts, and is held while Sink is called. Only the streams' own goroutines take it.
	applying sync.Mutex

	// mu guards streams and the status of each. Nothing is called under it.
	mu      sync.Mutex
	streams []*Stream
}

// shared is what the replicas of a Manager share.
type shared struct {
	Options
	sizes   sizes
	replays chan struct{}
}

// decoder reads a message, until the context ends.
type decoder = func(ctx context.Context, payload []byte) Batch

// Stream is one connection's worth of a replica's events: of one rank, or of those that share a connection.
type Stream struct {
	*replica
	source string
	rank   int // of batches that do not name one
	decode decoder

	translators map[int]*translator
	counts      counts // of all translators, and of messages that reached none

	status Status
	warned bool // why there is no connection, since a message came last
}

func (r *replica) stream(source string, rank int, decode decoder) *Stream {
	s := &Stream{replica: r, source: source, rank: rank, decode: decode, translators: map[int]*translator{}}
	s.status.Replica, s.status.Source, s.status.Rank = r.id, source, rank
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streams = append(r.streams, s)
	return s
}

// apply takes one message in and passes on what it changed. It stops when the context ends: the stream is then cleared.
func (s *Stream) apply(ctx context.Context, seq uint64, payload []byte) {
	s.applying.Lock()
	defer s.applying.Unlock()
	b := s.decode(ctx, payload)
	for kind, n := range b.Bad {
		s.counts.bad.Count(kind, n)
	}
	rank := s.rank
	if b.HasRank {
		rank = b.Rank
	}
	if rank < maxRanks {
		s.translator(rank).apply(ctx, b.Events)
	} else {
		s.counts.bad.Count(BadBatch, 1)
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
		t = newTranslator(s.id, rank, s.model, &s.Options, &s.sizes, &s.counts)
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
		"replica", s.id, "source", s.source)
	s.clear()
}

// Unreadable counts a message that never became a payload.
func (s *Stream) Unreadable() {
	s.applying.Lock()
	defer s.applying.Unlock()
	s.counts.bad.Count(BadFrames, 1)
	s.publish(func(*Status) {})
}

// publish makes the counts visible in the status, and changes it. The caller holds applying.
func (s *Stream) publish(do func(*Status)) {
	c := &s.counts
	blocks, size := 0, 0
	for _, t := range s.translators {
		blocks, size = blocks+t.blocks.held, max(size, t.size)
	}
	refused := ""
	if n := c.bad[BadSize]; n > 0 {
		refused = fmt.Sprintf("%d events refused: their block size is not the %d tokens of the model's other replicas",
			n, s.sizes.size(s.model))
	}
	s.Update(func(st *Status) {
		st.Events, st.Orphaned, st.Forgotten, st.Unreadable = c.events, c.orphaned, c.forgotten, maps.Clone(c.bad)
		st.Blocks, st.BlockTokens, st.refused = blocks, size, refused
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
			"replica", s.id, "source", s.source, "error", err)
	}
}

// sizes is the block size of every model, learned from the first block stored. Replicas of one model must agree: with
// another size, equal prompts have other hashes. Safe for concurrent use.
type sizes struct {
	mu sync.Mutex // guards the map; nothing is called under it
	of map[string]sizeClaim
}

type sizeClaim struct{ tokens, ranks int }

// claim reports whether a rank may use this block size, and counts it as a user if so.
func (s *sizes) claim(model string, tokens int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = make(map[string]sizeClaim)
	}
	c := s.of[model]
	if c.ranks > 0 && c.tokens != tokens {
		return false
	}
	s.of[model] = sizeClaim{tokens, c.ranks + 1}
	return true
}

// release takes a claim back; 0 tokens were none. With its last user the size is free.
func (s *sizes) release(model string, tokens int) {
	if tokens == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.of[model]; c.ranks > 1 {
		s.of[model] = sizeClaim{c.tokens, c.ranks - 1}
	} else {
		delete(s.of, model)
	}
}

// size is the block size of a model, 0 if it is not known.
func (s *sizes) size(model string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[model].tokens
}
