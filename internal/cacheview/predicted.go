package cacheview

import (
	"sort"
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/internal/kvindex"
)

// routes is what was routed to one rank of a replica.
type routes struct {
	slot kvindex.Slot
	work atomic.Int64 // see Member.Work; written with mu held

	// mu guards what is below. The index's lock is taken under it.
	mu     sync.Mutex
	era    uint64        // of the requests under way; a new one begins when there are none
	tokens int           // size of the KV cache; 0 = not known
	blocks int           // the capacity in force; 0 = none
	live   int           // blocks of requests under way
	gone   bool          // the member has left: its slot may be another's
	open   []*Prediction // of the prompts under way, for those that may have to be taken back
}

// A Route is a request that goes to a rank of a member.
type Route struct {
	Blocks      []uint64 // of the prompt, which the rank will hold; may be empty
	BlockTokens int      // size of a block
	Work        int64    // counts as work under way
	Alone       bool     // no other request of this client is under way on the member
}

// maxOpen bounds the open predictions of a rank, where a host does not report the ends of its requests.
const maxOpen = 1024

// A Prediction is what a request that was Routed adds to a rank: its work until it ends,
// and its blocks, which [Index.TakeBack] removes. The zero value is none. It must not be
// copied or moved while it is under way. One goroutine at a time uses it.
type Prediction struct {
	on     *routes
	era    uint64
	blocks []uint64
	work   int64
	held   int // leading blocks that are there with or without this request; guarded by routes.mu
	place  int // in routes.open; -1 = in none; guarded by routes.mu
}

// Routed notes that a request goes to a rank of a member, which will hold the prompt.
func (x *Index) Routed(s *Prediction, m *Member, rank int, r Route) {
	if r.Alone { // those before ended without notice
		m.beginEra()
	}
	own := m.own(rank)
	own.mu.Lock()
	own.work.Add(r.Work)
	*s = Prediction{on: own, era: own.era, blocks: r.Blocks, work: r.Work, place: -1}
	if len(r.Blocks) == 0 {
		own.mu.Unlock()
		return
	}
	own.live += len(r.Blocks)
	if s.held = x.blocks.Held(own.slot, r.Blocks); s.held < len(r.Blocks) {
		own.enter(s)
	}
	want := 0
	switch {
	case m.reported.Load():
		want = max(own.live, 1)
	case own.tokens > 0:
		want = max(own.tokens/max(r.BlockTokens, 1), 1)
	}
	if want != own.blocks {
		own.blocks = want
		x.blocks.SetCapacity(own.slot, want)
	}
	own.mu.Unlock()
	x.blocks.Insert(own.slot, r.Blocks)
}

// beginEra forgets what seems to be under way on a member.
func (m *Member) beginEra() {
	for _, own := range m.routes {
		own.mu.Lock()
		if own.live != 0 || own.work.Load() != 0 {
			own.era++
			own.live = 0
			own.work.Store(0)
		}
		own.mu.Unlock()
	}
}

// End ends a prediction whose prompt the rank holds. Later calls do nothing.
func (s *Prediction) End() {
	own := s.leave()
	if own == nil {
		return
	}
	defer own.mu.Unlock()
	for _, o := range own.open {
		if o.held < min(len(o.blocks), len(s.blocks)) && o.blocks[o.held] == s.blocks[o.held] {
			o.held = alike(o.blocks, s.blocks)
		}
	}
}

// TakeBack ends a prediction whose prompt was not prefilled: the rank loses the blocks
// that only this request was to bring. Later calls do nothing.
func (x *Index) TakeBack(s *Prediction) {
	own := s.leave()
	if own == nil {
		return
	}
	defer own.mu.Unlock()
	keep := s.held
	for _, o := range own.open {
		if s.held < len(o.blocks) && s.held < len(s.blocks) && o.blocks[s.held] == s.blocks[s.held] {
			keep = max(keep, alike(o.blocks, s.blocks))
			o.held = min(o.held, s.held) // it brings them now
		}
	}
	if keep < len(s.blocks) && !own.gone {
		x.blocks.Remove(own.slot, s.blocks[keep:])
	}
}

// leave ends a prediction and returns its routes with mu held; nil where it has ended.
func (s *Prediction) leave() *routes {
	own := s.on
	if own == nil {
		return nil
	}
	s.on = nil
	own.mu.Lock()
	if s.era == own.era {
		own.live -= len(s.blocks)
		own.work.Add(-s.work)
	}
	if at := s.place; at >= 0 {
		last := len(own.open) - 1
		own.open[at] = own.open[last]
		own.open[at].place = at
		own.open[last] = nil
		own.open = own.open[:last]
		s.place = -1
	}
	return own
}

// enter lists a prediction as open. Called with mu held.
func (r *routes) enter(s *Prediction) {
	if len(r.open) == maxOpen { // their ends do not come
		for i, o := range r.open {
			o.place, r.open[i] = -1, nil
		}
		r.open = r.open[:0]
	}
	s.place = len(r.open)
	r.open = append(r.open, s)
}

// alike returns how many leading blocks two prompts have in common.
func alike(a, b []uint64) int {
	return sort.Search(min(len(a), len(b)), func(i int) bool { return a[i] != b[i] })
}

// own returns the routes of a rank; of a rank that the replica does not have, those of the first.
func (m *Member) own(rank int) *routes {
	if rank < 0 || rank >= len(m.routes) {
		rank = 0
	}
	return m.routes[rank]
}

// Work is the work under way on a rank: that of the Routes that have not ended.
func (m *Member) Work(rank int) int64 { return m.own(rank).work.Load() }

// SetCapacity sets the size of a replica's KV cache, of each of its ranks; 0 or less =
// not known. An id that is not in the fleet is ignored.
func (x *Index) SetCapacity(id string, kvTokens int) {
	x.mu.Lock()
	m := x.members[id]
	x.mu.Unlock()
	if m == nil {
		return
	}
	for _, own := range m.routes {
		own.mu.Lock()
		own.tokens = max(kvTokens, 0)
		own.mu.Unlock()
	}
}
