package kvevents

import (
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

	// mu makes the changes of one replica come one after another, whatever its streams. It guards the translators and
	// the status of every stream, and is held while sink is called.
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
	status      Status
	gone        counts // of translators that were dropped
	told        bool   // why there is no connection, since a message came last
}

func (r *replica) stream(source string, rank int, decode func(*batch, []byte)) *stream {
	s := &stream{replica: r, source: source, rank: rank, decode: decode, translators: map[int]*translator{}}
	s.status.Replica, s.status.Source, s.status.Rank = r.id, source, rank
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streams = append(r.streams, s)
	return s
}

// apply takes one message in and tells what it changed.
func (s *stream) apply(seq uint64, payload []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decode(&s.batch, payload)
	s.told = false
	s.status.Messages++
	s.status.Next = seq + 1
	rank := s.rank
	if s.batch.hasRank {
		rank = s.batch.rank
	}
	if rank >= maxRanks {
		s.gone.bad[badBatch]++
		return
	}
	t := s.translators[rank]
	if t == nil {
		t = newTranslator(s.id, rank, s.model, s.opts, s.sizes)
		s.translators[rank] = t
	}
	s.tell(t.apply(&s.batch, time.Now()))
}

func (s *stream) tell(changes []routing.CacheChange) {
	if len(changes) > 0 {
		s.sink(changes)
	}
}

// clear forgets all that the stream has told.
func (s *stream) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.translators {
		s.tell(t.clear())
	}
	s.status.Next = 0
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
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone.bad[kind]++
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
