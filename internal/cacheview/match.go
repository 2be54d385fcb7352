package cacheview

import (
	"cmp"
	"slices"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/internal/rendezvous"
)

// A Fleet is the membership of one epoch, by place. Immutable.
type Fleet struct {
	Epoch    uint64
	Replicas []*policy.Replica
	Members  []*Member

	units []int32 // the first unit of each place, and behind them their number
}

// Fleet returns the fleet of a View, or a newer one. It takes a lock once an epoch.
func (x *Index) Fleet(v policy.View) *Fleet {
	if f := x.fleet.Load(); f != nil && f.Epoch >= v.Epoch() {
		return f
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if f := x.fleet.Load(); f != nil && f.Epoch >= v.Epoch() {
		return f
	}
	f, old := &Fleet{Epoch: v.Epoch(), Replicas: v.Replicas()}, x.fleet.Load()
	f.Members, f.units = make([]*Member, 0, len(f.Replicas)), make([]int32, 0, len(f.Replicas)+1)
	units, renewed := 0, false
	for i, r := range f.Replicas {
		if old != nil && i < len(old.Replicas) && old.Replicas[i] == r && old.Members[i] != absent { // the same replica
			f.Members, f.units = append(f.Members, old.Members[i]), append(f.units, int32(units))
			units += ranks(r)
			continue
		}
		m := cmp.Or(x.members[r.ID], absent)
		if m != absent && !slices.Equal(m.models, declared(r)) {
			m.models, renewed = declared(r), true
		}
		m.place.Store(int32(i))
		f.Members = append(f.Members, m)
		f.units = append(f.units, int32(units))
		units += ranks(r)
	}
	f.units = append(f.units, int32(units))
	if renewed {
		x.learnNames(make(map[string]string), f.Members...)
	}
	x.fleet.Store(f)
	return f
}

// Place returns where a member stands, and false if it is not of this fleet, or stands elsewhere in a newer one.
func (f *Fleet) Place(m *Member) (at int, ok bool) {
	at = int(m.place.Load())
	return at, at < len(f.Members) && f.Members[at] == m
}

// Units returns how many units the fleet has.
func (f *Fleet) Units() int { return int(f.units[len(f.Replicas)]) }

// Unit returns the unit of a rank of the replica at a place; the last, where it has
// fewer ranks.
func (f *Fleet) Unit(place, rank int) int { return int(f.units[place]) + min(rank, f.Ranks(place)-1) }

// Ranks returns how many units the replica at a place is.
func (f *Fleet) Ranks(place int) int { return int(f.units[place+1] - f.units[place]) }

// PlaceOf returns the place of the replica that a unit belongs to. O(log replicas).
func (f *Fleet) PlaceOf(unit int) int {
	at, _ := slices.BinarySearch(f.units, int32(unit+1))
	return at - 1
}

// Member returns the member of a replica of any View.
func (x *Index) Member(r *policy.Replica) *Member {
	if f := x.fleet.Load(); f != nil && r.Index() < len(f.Replicas) && f.Replicas[r.Index()] == r {
		return f.Members[r.Index()]
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return cmp.Or(x.members[r.ID], absent)
}

// Found is the answer of [Index.Match], to be used again for the next one. The zero
// value is ready. It belongs to one goroutine at a time.
type Found struct {
	// Holders are the units that hold at least a block on any tier, with how many they
	// hold, the deepest first. A unit is a replica, by its place in the fleet, or one
	// of its ranks: see Fleet.Unit.
	Holders []rendezvous.Place
	// Scores are the replicas' in the rendezvous order, by place in the fleet; Find sets them.
	Scores []uint64

	scorer  rendezvous.Scorer
	matches kvindex.Matches
	depths  [][policy.Tiers]int32 // by unit
	bounds  []uint64
}

// Depth returns how many leading blocks a unit holds on a tier or a faster one.
func (f *Found) Depth(unit int, t policy.Tier) int { return int(f.depths[unit][t]) }

// Any returns how many leading blocks a unit holds on any tier.
func (f *Found) Any(unit int) int { return f.Depth(unit, policy.Tiers-1) }

// Find is Match for a prompt in memory that is used again, and has the replicas' order. Free gives it back.
func (x *Index) Find(fleet *Fleet, p *rendezvous.Prompt) *Found {
	f, _ := x.found.Get().(*Found)
	if f == nil {
		f = new(Found)
	}
	x.Match(fleet, &p.Blocks, f)
	f.Scores = f.scorer.Scores(f.Scores[:0], p, fleet.Replicas)
	return f
}

// Free takes back what Find returned.
func (x *Index) Free(f *Found) { x.found.Put(f) }

// Match finds how many leading blocks of a prompt each unit of the fleet holds.
func (x *Index) Match(fleet *Fleet, b *rendezvous.Blocks, f *Found) {
	for _, h := range f.Holders {
		f.depths[h.At] = [policy.Tiers]int32{}
	}
	f.Holders = f.Holders[:0]
	f.depths = append(f.depths, make([][policy.Tiers]int32, max(fleet.Units()-len(f.depths), 0))...)
	coarse, per := x.coarse.Load(), 0
	if coarse {
		f.bounds, per = b.Superblocks(f.bounds[:0])
		x.blocks.Match(f.bounds, &f.matches)
		f.addCoarse(fleet, per)
	}
	x.blocks.Match(b.Hashes, &f.matches)
	if per > 0 {
		f.addTails(fleet, per)
	}
	f.add(fleet, per > 0)
	for i := range f.Holders {
		h := &f.Holders[i]
		for t, depth := range f.depths[h.At] {
			h.Depth = max(h.Depth, depth)
			f.depths[h.At][t] = h.Depth
		}
	}
	if coarse {
		slices.SortFunc(f.Holders, func(a, b rendezvous.Place) int {
			return cmp.Or(cmp.Compare(b.Depth, a.Depth), cmp.Compare(a.At, b.At))
		})
	}
}

// addCoarse takes the matches of superblocks of so many blocks.
func (f *Found) addCoarse(fleet *Fleet, per int) {
	for _, h := range f.matches.Holders {
		if l := h.Owner.(*lane); l.coarse {
			f.deepen(fleet, l, l.tier, h.Depth*per)
		}
	}
}

// addTails takes what was routed to replicas whose superblocks are known, up to the end of the first superblock that
// is not there. It counts on the tier of what it follows. Called before any block is added.
func (f *Found) addTails(fleet *Fleet, per int) {
	for _, h := range f.matches.Holders {
		l := h.Owner.(*lane)
		at, ok := fleet.Place(l.member)
		if !ok || !l.routed || !l.member.Coarse() {
			continue
		}
		depths, tier := &f.depths[fleet.Unit(at, l.rank)], policy.TierGPU
		for t, depth := range depths {
			if depth > depths[tier] {
				tier = policy.Tier(t)
			}
		}
		f.deepen(fleet, l, tier, min(h.Depth, int(depths[tier])+per-1))
	}
}

// add takes the matches of blocks, without those of addTails if tails is set.
func (f *Found) add(fleet *Fleet, tails bool) {
	for _, h := range f.matches.Holders {
		if l := h.Owner.(*lane); !l.coarse && !(tails && l.routed && l.member.Coarse()) {
			f.deepen(fleet, l, l.tier, h.Depth)
		}
	}
}

// deepen notes that a lane holds so many leading blocks.
func (f *Found) deepen(fleet *Fleet, l *lane, tier policy.Tier, depth int) {
	at, ok := fleet.Place(l.member)
	if !ok || depth == 0 {
		return
	}
	unit := fleet.Unit(at, l.rank)
	depths := &f.depths[unit]
	if *depths == [policy.Tiers]int32{} {
		f.Holders = append(f.Holders, rendezvous.Place{At: int32(unit)})
	}
	depths[tier] = max(depths[tier], int32(depth))
}

// A Scope is one pool of a View in which to find the replicas of a fleet that may be
// older.
type Scope struct {
	Fleet *Fleet
	View  policy.View
	Pool  policy.Pool
	Stale bool // the fleet is not the View's
}

// NewScope returns the scope of a fleet, which may be nil, in a View. Set its Pool next.
func NewScope(f *Fleet, v policy.View) Scope {
	return Scope{Fleet: f, View: v, Stale: f == nil || f.Epoch != v.Epoch()}
}

// Take returns the replica at a place of the fleet, as it is now, if it is in the pool
// and available; else nil. O(log replicas).
func (s *Scope) Take(at int32) *policy.Replica {
	r := s.Fleet.Replicas[at]
	if s.Stale {
		r = s.View.ByID(r.ID)
	}
	if r == nil || !s.Pool.Takes(r) {
		return nil
	}
	if s.Pool.Whole {
		return r
	}
	i, ok := slices.BinarySearchFunc(s.Pool.Replicas, r.Index(), func(o *policy.Replica, i int) int {
		return o.Index() - i
	})
	if !ok || s.Pool.Replicas[i] != r {
		return nil
	}
	return r
}

// Queue returns how many tokens are known to wait for their prefill on a replica.
func Queue(r *policy.Replica) float64 {
	_, peers := r.PeerLoad()
	return float64(peers) + float64(r.QueuedTokens())
}

// Waiting returns how many requests so many queued tokens are, beside the one that is computed, if each has so many
// tokens that are not cached. A token more that must be computed delays all of them.
func Waiting(queue, uncached float64) float64 {
	return max(queue/max(uncached, policy.RequestCost)-1, 0)
}
