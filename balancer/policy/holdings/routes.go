package holdings

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/balancer/kvindex"
)

// routes is what was routed to one rank of a replica.
type routes struct {
	slot kvindex.Slot
	work atomic.Int64 // see Member.Work

	// mu guards what is below. The index's lock is taken under it.
	mu     sync.Mutex
	tokens int // size of the KV cache; 0 = not known
	blocks int // the capacity in force; 0 = none
	live   int // blocks of requests under way
	ended  int // of those that ended since the last route
	fading []fading

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

// Routed says that a prompt went to a rank of a member: it holds it now. alone says
// that nothing else of ours is under way there. blockTokens is the size of a block.
func (x *Index) Routed(m *Member, rank int, blocks []uint64, blockTokens int, alone bool, now time.Time) {
	own := m.own(rank)
	own.mu.Lock()
	recent := own.begin(len(blocks), alone, now)
	want := 0
	switch {
	case m.told.Load():
		want = max(recent, 1)
	case own.tokens > 0:
		want = max(own.tokens/max(blockTokens, 1), 1)
	}
	if own.most > 0 && !m.told.Load() && (want == 0 || own.most < want) {
		want = own.most
	}
	if want != own.blocks {
		own.blocks = want
		x.blocks.SetCapacity(own.slot, want)
	}
	own.mu.Unlock()
	x.blocks.Insert(own.slot, blocks)
}

// Completed says that a request that was Routed has ended.
func (x *Index) Completed(m *Member, rank int, blocks int) {
	own := m.own(rank)
	own.mu.Lock()
	own.live = max(own.live-blocks, 0)
	own.ended += blocks
	own.mu.Unlock()
}

// begin counts a request and returns the blocks of those that are under way or ended
// lately. What ended since the one before gets its time now: there is no clock at the
// end of a request, and nothing is evicted where nothing is routed. If it is alone,
// nobody told the end of those that seem to be under way.
func (r *routes) begin(blocks int, alone bool, now time.Time) int {
	if r.ended > 0 {
		r.fade(now.Add(Grace), r.ended)
		r.ended = 0
	}
	gone := 0
	for gone < len(r.fading) && !now.Before(r.fading[gone].until) {
		gone++
	}
	r.fading = append(r.fading[:0], r.fading[gone:]...)
	if alone {
		r.live = 0
	}
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

// Work is for whoever counts the work under way on a rank.
func (m *Member) Work(rank int) *atomic.Int64 { return &m.own(rank).work }

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
