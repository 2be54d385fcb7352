package cacheview

import (
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/internal/rendezvous"
)

// Options configure an [Index].
type Options struct {
	// MaxBytes is the budget. For superblocks a sixteenth of it, at least 1 MiB, comes
	// on top with the first report of one.
	MaxBytes int64
	// Grain is how prompts are cut until an engine reports its own block.
	Grain rendezvous.Grain
	// Learn takes the engines' block of tokens in place of Grain.Tokens.
	Learn bool
	// Ranks keeps the data-parallel ranks of a replica apart; else a replica holds
	// what any of its ranks holds.
	Ranks bool
	// KVTokens is the size of a replica's KV cache in tokens until SetCapacity; 0 = not
	// known, and only the budget bounds the prediction.
	KVTokens int
}

// Index is the cache view of one Router's replicas. Safe for concurrent use.
type Index struct {
	o      Options
	blocks part
	supers part // superblocks
	learnt atomic.Pointer[learnt]

	// mu guards members, free, the members' lanes, and the making of fleets and lane
	// tables. FleetChanged takes it under the Router's lock; under it the locks of
	// package kvindex are taken.
	mu      sync.Mutex
	members map[string]*Member // by replica id
	free    []int              // numbers of members that left
	fleet   atomic.Pointer[Fleet]

	refused atomic.Int64
}

// A part of an Index is blocks of one kind.
type part struct {
	*kvindex.Index
	lanes
}

const (
	supersShare = 16 // the budget's share for superblocks is 1 in so many
	minSupers   = 1 << 20
)

// New returns an Index over an empty fleet.
func New(o Options) *Index {
	x := &Index{o: o, members: make(map[string]*Member)}
	x.blocks.Index = kvindex.New(kvindex.Options{MaxBytes: o.MaxBytes})
	x.supers.Index = kvindex.New(kvindex.Options{MaxBytes: max(o.MaxBytes/supersShare, minSupers)})
	x.learnt.Store(&learnt{make(map[string]string), make(map[string]int)})
	return x
}

// Stats describe both indexes, and how many reports were refused.
func (x *Index) Stats() policy.IndexStats {
	sum := policy.IndexStats{Refused: x.refused.Load()}
	for _, p := range [...]*part{&x.blocks, &x.supers} {
		s := p.Stats()
		sum.Bytes += s.Bytes
		sum.Blocks += int64(s.Blocks)
		sum.Evictions += int64(s.Evictions)
		sum.LiveEvictions += int64(s.LiveEvictions)
	}
	return sum
}
