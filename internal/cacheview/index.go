// Package cacheview keeps what every replica has in its KV cache: predicted from the
// routes of this client, and reported by the engines or a look-aside server.
//
// # Rule
//
// A replica without reports holds what was routed there, in a list that is as long as
// its KV cache if that is known. A replica with reports ([Index.CacheChanged]) holds
// what is reported, by tier, and beside that the blocks of requests that are under way:
// reports are older than the last picks, and what was routed before may have been evicted
// since.
//
// Reports come in blocks, in superblocks, or in both. A superblock is looked up by the
// chained hash of the block that ends it; the depth of a replica is the deepest of all
// sources. Superblocks do not tell of the tokens behind the last full one: what was routed
// tells of these, up to the end of the first superblock that is not reported. Prompts are cut
// in the blocks that are reported. Blocks of another size than those of another replica of the
// model, and superblocks that blocks do not divide, are refused and counted.
//
// # Complexity
//
// [Index.Match] is one look-up of package kvindex, two once superblocks are reported, and
// O(holders). Reports and routes cost what inserting costs there.
//
// # Guarantees
//
// One byte budget. A replica that leaves holds nothing at once. Hashes only.
//
// # Source
//
// The rule of the predictions is the project's own; docs/routing-quality.md measures it.
package cacheview

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/internal/rendezvous"
	"github.com/warmpath/warmpath/internal/strict"
)

// Options configure an [Index].
type Options struct {
	// MaxBytes is the budget.
	MaxBytes int64
	// Grain is how prompts are cut. An engine's own block of tokens takes the place of Grain.Tokens once it is reported.
	Grain rendezvous.Grain
	// KVTokens is the size of a replica's KV cache in tokens until SetCapacity; 0 = not
	// known, and only the budget bounds the prediction.
	KVTokens int
}

// Bounds of what the policy is configured with.
const (
	maxBlockTokens = 1 << 16
	minIndexBytes  = 1 << 20
)

// CheckSizes checks the blocks that prompts are cut in and the budget of an index. The error names the field.
func CheckSizes(blockTokens int, indexBytes int64) error {
	return cmp.Or(
		strict.Within("block_tokens", blockTokens, 1, maxBlockTokens),
		strict.Want(indexBytes >= minIndexBytes, "index_bytes: it is %d, want at least %d", indexBytes, minIndexBytes),
	)
}

// Index is the cache view of one Router's replicas. Safe for concurrent use.
type Index struct {
	o       Options
	blocks  *kvindex.Index
	coarse  atomic.Bool // a superblock was reported
	learnt  atomic.Pointer[learnt]
	refused atomic.Int64
	found   sync.Pool // of *Found

	// mu guards members, the members' lanes, and the making of fleets. FleetChanged takes it under the Router's lock;
	// under it the locks of predictions and of package kvindex are taken.
	mu      sync.Mutex
	members map[string]*Member // by replica id
	fleet   atomic.Pointer[Fleet]
}

// New returns an Index over an empty fleet.
func New(o Options) *Index {
	x := &Index{
		o: o, members: make(map[string]*Member), blocks: kvindex.New(o.MaxBytes),
	}
	x.learnt.Store(&learnt{make(map[string]string), make(map[string]int)})
	return x
}

// Stats describe the index, and how many reports were refused.
func (x *Index) Stats() policy.IndexStats {
	s := x.blocks.Stats()
	return policy.IndexStats{
		Bytes: s.Bytes, Blocks: int64(s.Blocks), Refused: x.refused.Load(),
		Evictions: int64(s.Evictions), LiveEvictions: int64(s.LiveEvictions),
	}
}

// A Member is the cache of a replica for as long as its id stays in the fleet.
type Member struct {
	Busy Busy // belongs to Choose, and so to the Router's lock

	id       string
	place    atomic.Int32          // in the newest Fleet
	models   []string              // declared, "" where none is; guarded by Index.mu
	reported atomic.Int32          // a grain: that of its reports, the finest; written with Index.mu held
	block    int                   // tokens in the blocks of its reports; 0 = none; guarded by Index.mu
	routes   []*routes             // by rank
	lanes    map[lane]kvindex.Slot // of its reports; guarded by Index.mu
}

// Busy is the mean of the calls under way on a replica over some minutes.
type Busy struct {
	Mean float64
	At   time.Time // of the last call that was counted
}

// Grains of the reports of a replica, that are no predictions of another client.
const (
	unreported int32 = iota
	inSuperblocks
	inBlocks
)

// Reported reports whether the replica's cache is known block by block, from its engine.
func (m *Member) Reported() bool { return m.reported.Load() == inBlocks }

// Coarse reports whether the replica's cache is known in superblocks only.
func (m *Member) Coarse() bool { return m.reported.Load() == inSuperblocks }

// lane describes what a slot holds.
type lane struct {
	member *Member
	rank   int
	tier   policy.Tier
	coarse bool // superblocks
	routed bool // what was routed there, and may be evicted since
}

// absent stands for a replica that has left already.
var absent = &Member{routes: []*routes{{slot: kvindex.NoSlot, underWay: kvindex.NoSlot}}}

// declared returns the models that a replica declares, "" where there are none.
func declared(r *policy.Replica) []string {
	if len(r.Models) == 0 {
		return none
	}
	return r.Models
}

var none = []string{""}

// FleetChanged is [policy.FleetObserver]'s, for the policy to pass on. A replica whose
// connection is down still holds what it has.
func (x *Index) FleetChanged(c policy.FleetChange) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range c.Removed {
		if m := x.members[r.ID]; m != nil {
			x.forget(m)
		}
	}
	for _, r := range c.Added {
		m := &Member{id: r.ID, models: declared(r), lanes: make(map[lane]kvindex.Slot)}
		x.members[r.ID] = m
		for rank := range ranks(r) {
			slot := x.blocks.Add(&lane{member: m, rank: rank, routed: true})
			own := &routes{index: x.blocks, slot: slot, underWay: kvindex.NoSlot, tokens: x.o.KVTokens}
			m.routes = append(m.routes, own)
		}
	}
}

// forget takes a member out. Called with mu held.
func (x *Index) forget(m *Member) {
	for _, own := range m.routes {
		own.mu.Lock()
		x.blocks.Drop(own.slot)
		x.blocks.Drop(own.underWay)
		own.slot, own.underWay = kvindex.NoSlot, kvindex.NoSlot
		own.mu.Unlock()
	}
	for _, slot := range m.lanes {
		x.blocks.Drop(slot)
	}
	delete(x.members, m.id)
}

// ranks returns how many data-parallel ranks a replica has.
func ranks(r *policy.Replica) int { return max(r.Ranks, 1) }
