package cacheview

import (
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/internal/kvindex"
)

// routes is what was routed to one rank of a replica.
type routes struct {
	slot kvindex.Slot
	work atomic.Int64 // see Member.Work; written with mu held

	// mu guards what is below. The index's lock is taken under it.
	mu     sync.Mutex
	era    uint64 // begins when nothing of ours is under way: the end of what began before is no news
	tokens int    // size of the KV cache; 0 = not known
	blocks int    // the capacity in force; 0 = none
	live   int    // blocks of requests under way
	ended  int    // of those that ended since the last route
	fading []fading
	gone   bool    // the member has left: its slot may be another's
	open   []*Stay // of the prompts under way, for those of them that may have to be taken back

	// See Index.Measured.
	seen                int
	predicted, measured float64
	most                int // blocks believed to be held, at most; 0 = no bound
}

// fading are blocks of requests that ended, which count until a time.
type fading struct {
	until  time.Time
	blocks int
}

// A Route is a request that goes to a rank of a member.
type Route struct {
	Blocks      []uint64 // of the prompt, which it will hold; may be empty
	BlockTokens int      // size of a block
	Work        int64    // counts as work under way
	Alone       bool     // nothing else of ours is under way on the member
	Now         time.Time
}

// maxOpen bounds the open stays of a rank, where a host does not say how its requests end.
const maxOpen = 1024

// A Stay is what a request that was Routed adds to a rank: its work until it ends, and its
// blocks, which [Index.TakeBack] removes. The zero Stay is none. It must not be copied or
// moved while it is under way. One goroutine at a time uses it.
type Stay struct {
	on     *routes
	era    uint64
	blocks []uint64
	work   int64
	held   int // leading blocks that are there whatever becomes of the request; guarded by routes.mu
	place  int // in routes.open; -1 = in none; guarded by routes.mu
}

// Routed notes that a request goes to a rank of a member, which will hold the prompt.
func (x *Index) Routed(s *Stay, m *Member, rank int, r Route) {
	if r.Alone { // those before may have ended unnoticed
		m.beginEra()
	}
	own := m.own(rank)
	own.mu.Lock()
	own.work.Add(r.Work)
	*s = Stay{on: own, era: own.era, blocks: r.Blocks, work: r.Work, place: -1}
	if len(r.Blocks) == 0 {
		own.mu.Unlock()
		return
	}
	recent := own.begin(len(r.Blocks), r.Now)
	if s.held = x.blocks.Held(own.slot, r.Blocks); s.held < len(r.Blocks) {
		own.enter(s)
	}
	want := 0
	switch {
	case m.told.Load():
		want = max(recent, 1)
	case own.tokens > 0:
		want = max(own.tokens/max(r.BlockTokens, 1), 1)
	}
	if own.most > 0 && !m.told.Load() && (want == 0 || own.most < want) {
		want = own.most
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

// End ends a stay whose prompt the rank holds. Later calls do nothing.
func (s *Stay) End() {
	own := s.leave()
	if own == nil {
		return
	}
	defer own.mu.Unlock()
	own.ended += len(s.blocks)
	for _, o := range own.open {
		if o.held < min(len(o.blocks), len(s.blocks)) && o.blocks[o.held] == s.blocks[o.held] {
			o.held = alike(o.blocks, s.blocks)
		}
	}
}

// TakeBack ends a stay whose prompt was not prefilled: the rank no longer holds what only
// this request was to bring there. Later calls do nothing.
func (x *Index) TakeBack(s *Stay) {
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

// leave ends a stay and returns its routes with mu held; nil where it has ended.
func (s *Stay) leave() *routes {
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

// enter lists a stay as open. Called with mu held.
func (r *routes) enter(s *Stay) {
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

// begin counts a request and returns the blocks of those that are under way or ended
// lately. What ended since the one before gets its time now: there is no clock at the
// end of a request, and nothing is evicted where nothing is routed.
func (r *routes) begin(blocks int, now time.Time) int {
	if r.ended > 0 {
		r.fade(now.Add(Grace), r.ended)
		r.ended = 0
	}
	gone := 0
	for gone < len(r.fading) && !now.Before(r.fading[gone].until) {
		gone++
	}
	r.fading = append(r.fading[:0], r.fading[gone:]...)
	r.live += blocks
	recent := r.live
	for _, f := range r.fading {
		recent += f.blocks
	}
	return recent
}

// fade notes blocks of requests that ended. What ends at about the same time is one.
func (r *routes) fade(until time.Time, blocks int) {
	if n := len(r.fading); n > 0 && until.Sub(r.fading[n-1].until) < Grace/64 {
		r.fading[n-1].blocks += blocks
		return
	}
	r.fading = append(r.fading, fading{until: until, blocks: blocks})
}

// own returns the routes of a rank; of a rank that is not known, those of the first.
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
	m := x.known[id]
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
