package cacheview

import (
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/internal/kvindex"
)

// routes is what was routed to one rank of a replica.
type routes struct {
	index *kvindex.Index
	work  atomic.Int64 // see Member.Work; written with mu held

	// mu guards what is below. The index's lock is taken under it.
	mu   sync.Mutex
	slot kvindex.Slot // NoSlot when the member has left
	// underWay has the blocks of requests under way while the member reports superblocks only; else it is NoSlot.
	underWay kvindex.Slot
	era      uint64        // of the requests under way; a new one begins when there are none
	tokens   int           // size of the KV cache; 0 = not known
	blocks   int           // the capacity in force; 0 = none
	live     int           // blocks of requests under way
	open     []*Prediction // of the prompts under way, for those that may have to be taken back
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
// and its blocks. The zero value is none. It must not be copied or moved while it is under
// way. One goroutine at a time uses it.
type Prediction struct {
	on     *routes
	era    uint64
	blocks []uint64
	work   int64
	held   int // leading blocks that are there with or without this request; guarded by routes.mu
}

// Routed notes that a request goes to a rank of a member, which will hold the prompt.
func (m *Member) Routed(s *Prediction, rank int, r Route) {
	s.End(true)  // of an attempt before, whose end did not come
	if r.Alone { // those before ended without notice
		m.beginEra()
	}
	own := m.own(rank)
	own.mu.Lock()
	defer own.mu.Unlock()
	slot := own.slot
	own.work.Add(r.Work)
	*s = Prediction{on: own, era: own.era, blocks: r.Blocks, work: r.Work}
	own.live += len(r.Blocks)
	if len(r.Blocks) == 0 || slot == kvindex.NoSlot {
		return
	}
	want := 0
	switch {
	case m.Reported():
		want = max(own.live, 1)
	case own.tokens > 0:
		want = max(own.tokens/max(r.BlockTokens, 1), 1)
	}
	if want != own.blocks {
		own.blocks = want
		own.index.SetCapacity(slot, want)
	}
	if own.underWay != kvindex.NoSlot {
		own.index.SetCapacity(own.underWay, max(own.live, 1))
		own.index.Insert(own.underWay, r.Blocks)
	}
	if s.held = own.index.Insert(slot, r.Blocks); s.held < len(r.Blocks) {
		if len(own.open) == maxOpen { // their ends do not come
			own.open = nil
		}
		own.open = append(own.open, s)
	}
}

// beginEra forgets what seems to be under way on a member.
func (m *Member) beginEra() {
	for _, own := range m.routes {
		own.mu.Lock()
		own.era++
		own.live = 0
		own.work.Store(0)
		own.mu.Unlock()
	}
}

// End ends a prediction. Where its prompt was not prefilled the rank loses the blocks that only this request was to
// bring. Later calls do nothing.
func (s *Prediction) End(prefilled bool) {
	own := s.on
	if own == nil {
		return
	}
	s.on = nil
	own.mu.Lock()
	defer own.mu.Unlock()
	if s.era == own.era {
		own.live -= len(s.blocks)
		own.work.Add(-s.work)
	}
	if i := slices.Index(own.open, s); i >= 0 {
		own.open = slices.Delete(own.open, i, i+1)
	}
	keep := s.held
	for _, o := range own.open {
		switch n := alike(o.blocks, s.blocks); {
		case prefilled:
			o.held = max(o.held, n)
		case n > s.held: // that one brings them now
			keep, o.held = max(keep, n), min(o.held, s.held)
		}
	}
	if !prefilled && own.slot != kvindex.NoSlot {
		own.index.Remove(own.slot, s.blocks[keep:])
		if own.underWay != kvindex.NoSlot {
			own.index.Remove(own.underWay, s.blocks[keep:])
		}
	}
}

// alike returns how many leading blocks two prompts have in common.
func alike(a, b []uint64) int {
	return sort.Search(min(len(a), len(b)), func(i int) bool { return a[i] != b[i] })
}

// own returns the routes of a rank; those of the last, where the replica has fewer.
func (m *Member) own(rank int) *routes { return m.routes[min(rank, len(m.routes)-1)] }

// Work is the work under way on a rank: that of the Routes that have not ended.
func (m *Member) Work(rank int) int64 { return m.own(rank).work.Load() }

// SetCapacity sets the size of a replica's KV cache, of each of its ranks; 0 or less =
// not known. An id that is not in the fleet is ignored.
func (x *Index) SetCapacity(id string, kvTokens int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.members[id]
	if m == nil {
		return
	}
	for _, own := range m.routes {
		own.mu.Lock()
		own.tokens = max(kvTokens, 0)
		own.mu.Unlock()
	}
}
