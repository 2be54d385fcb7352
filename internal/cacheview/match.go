package cacheview

import (
	"cmp"
	"slices"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/internal/rendezvous"
)

// Found is the answer of [Index.Match], to be used again for the next one. The zero
// value is ready. It belongs to one goroutine at a time.
type Found struct {
	// Holders are the units that hold at least a block on any tier, with how many they
	// hold, the deepest first. A unit is a replica, by its place in the fleet, or one
	// of its ranks: see Fleet.Unit.
	Holders []rendezvous.Place

	fine, coarse kvindex.Matches
	depth        [policy.Tiers][]int32 // by unit
	tiers        int                   // how many differ: above, the depth is that of the tier below
	bounds       []uint64
}

// Depth returns how many leading blocks a unit holds on a tier or a faster one.
func (f *Found) Depth(unit int, t policy.Tier) int {
	return int(f.depth[min(int(t), f.tiers-1)][unit])
}

// Any returns how many leading blocks a unit holds on any tier.
func (f *Found) Any(unit int) int { return f.Depth(unit, policy.Tiers-1) }

// Match finds how many leading blocks of a prompt each unit of the fleet holds.
func (x *Index) Match(fleet *Fleet, b *rendezvous.Blocks, f *Found) {
	f.reset(fleet.Units())
	x.blocks.Match(b.Hashes, &f.fine)
	for _, h := range f.fine.Holders {
		f.take(fleet, x.blocks.of(h.Slot), int32(h.Depth))
	}
	sorted := true
	if x.supers.table.Load() != nil {
		var per int
		f.bounds, per = b.Superblocks(f.bounds[:0])
		x.supers.Match(f.bounds, &f.coarse)
		for _, h := range f.coarse.Holders {
			f.take(fleet, x.supers.of(h.Slot), int32(h.Depth*per))
		}
		sorted = len(f.coarse.Holders) == 0
	}
	f.finish(sorted)
}

func (f *Found) reset(units int) {
	for _, h := range f.Holders {
		for t := range f.depth {
			if int(h.At) < len(f.depth[t]) {
				f.depth[t][h.At] = 0
			}
		}
	}
	f.Holders, f.tiers = f.Holders[:0], 1
	for t := range f.depth {
		if len(f.depth[t]) < units {
			f.depth[t] = append(f.depth[t], make([]int32, units-len(f.depth[t]))...)
		}
	}
}

// take notes what a lane holds.
func (f *Found) take(fleet *Fleet, l lane, depth int32) {
	at, ok := fleet.Place(l.member)
	if !ok {
		return
	}
	unit := fleet.Unit(at, l.rank)
	if f.depth[0][unit]|f.depth[1][unit]|f.depth[2][unit] == 0 {
		f.Holders = append(f.Holders, rendezvous.Place{At: int32(unit)})
	}
	d := &f.depth[l.tier][unit]
	*d = max(*d, depth)
	f.tiers = max(f.tiers, int(l.tier)+1)
}

// finish makes depths cumulative over the tiers, and puts the holders in order unless
// they came so.
func (f *Found) finish(sorted bool) {
	for i := range f.Holders {
		h := &f.Holders[i]
		for t := range f.tiers {
			h.Depth = max(h.Depth, f.depth[t][h.At])
			f.depth[t][h.At] = h.Depth
		}
	}
	if !sorted {
		slices.SortFunc(f.Holders, deeper)
	}
}

func deeper(a, b rendezvous.Place) int {
	return cmp.Or(cmp.Compare(b.Depth, a.Depth), cmp.Compare(a.At, b.At))
}

// Units returns how many units the fleet has.
func (f *Fleet) Units() int { return int(f.units[len(f.Replicas)]) }

// Unit returns the unit of a rank of the replica at a place; the first, where it has
// no such rank.
func (f *Fleet) Unit(place, rank int) int {
	first := int(f.units[place])
	if rank < 0 || first+rank >= int(f.units[place+1]) {
		return first
	}
	return first + rank
}

// Ranks returns how many units the replica at a place is.
func (f *Fleet) Ranks(place int) int { return int(f.units[place+1] - f.units[place]) }

// PlaceOf returns the place of the replica that a unit belongs to. O(log replicas).
func (f *Fleet) PlaceOf(unit int) int {
	at, _ := slices.BinarySearch(f.units, int32(unit+1))
	return at - 1
}
