package kvevents

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/warmpath/warmpath/balancer/routing"
)

// replica is what the streams of one replica share.
type replica struct {
	id    string
	model string
	opts  *Options
	sizes *sizes
	sink  func([]routing.CacheChange)

	// applying makes the changes of one replica come one after another, whatever its streams. It guards their batches,
	// translators and counts, and is held while sink is called. Only the streams' own goroutines take it.
	applying sync.Mutex

	// mu guards streams and the status of each. Nothing is called under it.
	mu      sync.Mutex
	streams []*stream
}

// stream is one connection's worth of a replica's events: of one rank, or of those that share a connection.
type stream struct {
	*replica
	source string
	rank   int // of batches that do not say one
	decode func(b *batch, payload []byte)

	batch       batch
	translators map[int]*translator
	unread      unreadable // of messages that reached no translator

	status Status
	told   bool // why there is no connection, since a message came last
}

func (r *replica) stream(source string, rank int, decode func(*batch, []byte)) *stream {
	s := &stream{replica: r, source: source, rank: rank, decode: decode, translators: map[int]*translator{}}
	s.status.Replica, s.status.Source, s.status.Rank = r.id, source, rank
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streams = append(r.streams, s)
	return s
}

// apply takes one message in and tells what it changed. It stops when the context ends: the stream is then cleared.
func (s *stream) apply(ctx context.Context, seq uint64, payload []byte) {
	s.applying.Lock()
	defer s.applying.Unlock()
	s.batch.ctx = ctx
	s.decode(&s.batch, payload)
	rank := s.rank
	if s.batch.hasRank {
		rank = s.batch.rank
	}
	if rank < maxRanks {
		s.translator(rank).apply(ctx, &s.batch, time.Now(), s.sink)
	} else {
		s.unread[badBatch]++
	}
	s.publish(func(st *Status) {
		s.told = false
		st.Messages++
		st.Next = seq + 1
	})
}

// applier is apply until the context ends.
func (s *stream) applier(ctx context.Context) func(seq uint64, payload []byte) {
	return func(seq uint64, payload []byte) { s.apply(ctx, seq, payload) }
}

// translator returns that of a rank. The caller holds applying.
func (s *stream) translator(rank int) *translator {
	t := s.translators[rank]
	if t == nil {
		t = newTranslator(s.id, rank, s.model, s.opts, s.sizes)
		s.translators[rank] = t
	}
	return t
}

// clear forgets all that the stream has told.
func (s *stream) clear() {
	s.applying.Lock()
	defer s.applying.Unlock()
	for _, t := range s.translators {
		t.clear(s.sink)
	}
	s.publish(func(st *Status) { st.Next = 0 })
}

// publish makes the counts visible in the status, and changes it. The caller holds applying.
func (s *stream) publish(do func(*Status)) {
	sum := counts{bad: s.unread}
	blocks, size := 0, 0
	for _, t := range s.translators {
		sum.add(&t.count)
		blocks += t.blocks.lists[0].n
		size = max(size, t.size)
	}
	refused := ""
	if n := sum.bad[badSize]; n > 0 {
		refused = fmt.Sprintf("%d events refused: their block size is not the %d tokens of the model's other replicas", n, s.sizes.size(s.model))
	}
	s.update(func(st *Status) {
		st.Events, st.Orphaned, st.Forgotten, st.Unreadable = sum.events, sum.orphaned, sum.forgotten, sum.bad.named()
		st.Blocks, st.BlockTokens, st.refused = blocks, size, refused
		do(st)
	})
}

// lose is clear because something was lost; it says so.
func (s *stream) lose() {
	s.opts.logger().Warn("warmpath: KV events were lost, or the engine was restarted: its cache counts as empty",
		"replica", s.id, "source", s.source)
	s.clear()
}

// update changes the status.
func (s *stream) update(do func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do(&s.status)
}

// unreadable counts a message that never became a payload.
func (s *stream) unreadable(kind int) {
	s.applying.Lock()
	defer s.applying.Unlock()
	s.unread[kind]++
	s.publish(func(*Status) {})
}

// failed notes why there is no connection; nil that there is one. It says so once, until a message has come: that one
// could be opened does not tell yet that the engine publishes there.
func (s *stream) failed(err error) {
	news := false
	s.update(func(st *Status) {
		st.Connected = err == nil
		if err == nil {
			st.Problem = ""
			st.Connections++
			return
		}
		st.Problem = err.Error()
		news, s.told = !s.told, true
	})
	if news {
		s.opts.logger().Warn("warmpath: a replica's KV events cannot be had, trying again; this is said once until some come",
			"replica", s.id, "source", s.source, "error", err)
	}
}
