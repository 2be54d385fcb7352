package cacheview

import (
	"slices"
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvindex"
)

// A Member is the cache of a replica for as long as its id stays in the fleet.
type Member struct {
	SentBytes atomic.Int64 // for a policy that counts what was sent there

	id       string
	number   int                   // dense; the number of a member that left is given again
	models   []string              // declared; guarded by Index.mu
	reported atomic.Bool           // a report came that was no prediction of another client
	block    int                   // tokens in the blocks of its reports; 0 = none; guarded by Index.mu
	routes   []*routes             // by rank
	lanes    map[lane]kvindex.Slot // of its reports; guarded by Index.mu
}

// absent stands for a replica that has left already.
var absent = &Member{number: -1, routes: []*routes{{slot: kvindex.NoSlot}}}

// A lane describes the blocks of a slot.
type lane struct {
	member *Member
	rank   int
	tier   policy.Tier
	part   *part
}

// lanes leads from slots to lanes. A slot is set under Index.mu, and read without it. The
// table is replaced by one twice as long when it is full, so that setting costs the same
// in a fleet of any size.
type lanes struct {
	table atomic.Pointer[[]atomic.Pointer[lane]]
}

func (t *lanes) of(s kvindex.Slot) lane {
	if table := t.table.Load(); table != nil && int(s) < len(*table) {
		if l := (*table)[s].Load(); l != nil {
			return *l
		}
	}
	return lane{}
}

func (t *lanes) set(s kvindex.Slot, l lane) {
	var slots []atomic.Pointer[lane]
	if table := t.table.Load(); table != nil {
		slots = *table
	}
	if int(s) >= len(slots) {
		longer := make([]atomic.Pointer[lane], max(2*len(slots), int(s)+1))
		for i := range slots {
			longer[i].Store(slots[i].Load())
		}
		slots = longer
		t.table.Store(&slots)
	}
	slots[s].Store(&l)
}

// FleetChanged is [policy.FleetObserver]'s, for the policy to pass on. A replica whose
// connection is down still holds what it has.
func (x *Index) FleetChanged(c policy.FleetChange) {
	if len(c.Added)+len(c.Removed) == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range c.Removed {
		if m := x.members[r.ID]; m != nil {
			x.forget(m)
		}
	}
	for _, r := range c.Added {
		m := &Member{id: r.ID, models: r.Models, number: len(x.members), lanes: make(map[lane]kvindex.Slot)}
		if n := len(x.free); n > 0 {
			m.number, x.free = x.free[n-1], x.free[:n-1]
		}
		x.members[r.ID] = m
		for rank := range x.ranks(r) {
			l := lane{member: m, rank: rank, part: &x.blocks}
			own := &routes{slot: x.blocks.Add(), tokens: x.o.KVTokens}
			if own.slot != kvindex.NoSlot {
				x.blocks.set(own.slot, l)
			}
			m.routes = append(m.routes, own)
		}
	}
}

// forget takes a member out. Called with mu held.
func (x *Index) forget(m *Member) {
	for _, own := range m.routes {
		own.mu.Lock()
		own.gone = true
		own.mu.Unlock()
		x.blocks.Drop(own.slot)
	}
	for l, slot := range m.lanes {
		l.part.Drop(slot)
	}
	delete(x.members, m.id)
	x.free = append(x.free, m.number)
}

// ranks returns how many ranks of a replica are kept apart.
func (x *Index) ranks(r *policy.Replica) int {
	if x.o.Ranks {
		return max(r.Ranks, 1)
	}
	return 1
}

// A Fleet is the membership of one epoch, by place. Immutable.
type Fleet struct {
	Epoch    uint64
	Replicas []*policy.Replica
	Members  []*Member

	places []int32 // by the member's number; -1 = not of this fleet
	units  []int32 // the first unit of each place, and behind them their number
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
	f := &Fleet{Epoch: v.Epoch(), Replicas: v.Replicas()}
	units, renewed := 0, false
	for i, r := range f.Replicas {
		m := x.members[r.ID]
		if m == nil {
			m = absent
		} else if !slices.Equal(m.models, r.Models) {
			m.models, renewed = r.Models, true
		}
		f.Members = append(f.Members, m)
		f.units = append(f.units, int32(units))
		units += x.ranks(r)
		if m.number >= 0 {
			for m.number >= len(f.places) {
				f.places = append(f.places, -1)
			}
			f.places[m.number] = int32(i)
		}
	}
	f.units = append(f.units, int32(units))
	if renewed {
		x.renewNames(f.Members)
	}
	x.fleet.Store(f)
	return f
}

// Place returns where a member stands, and false if it is not of this fleet.
func (f *Fleet) Place(m *Member) (int, bool) {
	if m == nil || m.number < 0 || m.number >= len(f.places) {
		return 0, false
	}
	at := f.places[m.number]
	return int(at), at >= 0 && f.Members[at] == m
}

// Member returns the member of a replica of any View.
func (x *Index) Member(r *policy.Replica) *Member {
	if f := x.fleet.Load(); f != nil && r.Index() < len(f.Replicas) && f.Replicas[r.Index()] == r {
		return f.Members[r.Index()]
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if m := x.members[r.ID]; m != nil {
		return m
	}
	return absent
}
