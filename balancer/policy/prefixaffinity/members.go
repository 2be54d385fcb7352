package prefixaffinity

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/kvindex"
	"github.com/warmpath/warmpath/balancer/routing"
)

// A member is what the policy knows of a replica for as long as its id stays in
// the fleet.
type member struct {
	slot  kvindex.Slot
	bytes atomic.Int64 // different bytes, or tokens, sent there; counted for OnMissSmallest
}

// stranger stands for a replica that has left already.
var stranger = &member{slot: kvindex.NoSlot}

// A fleet is the membership of one epoch, by place and by slot. Immutable.
type fleet struct {
	epoch    uint64
	replicas []*routing.Replica
	members  []*member
	bySlot   []int32 // place of the replica with the slot; -1 = none
	serving  map[string]int
	any      int // serve every model
}

// fleetOf returns the fleet of a View, or a newer one. It takes p.mu once an epoch.
func (p *Policy) fleetOf(v *routing.View) *fleet {
	if f := p.fleet.Load(); f != nil && f.epoch >= v.Epoch() {
		return f
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.fleet.Load(); f != nil && f.epoch >= v.Epoch() {
		return f
	}
	f := &fleet{epoch: v.Epoch(), replicas: v.Replicas(), serving: make(map[string]int)}
	for i, r := range f.replicas {
		m := p.known[r.ID]
		if m == nil {
			m = stranger
		}
		f.members = append(f.members, m)
		if m.slot != kvindex.NoSlot {
			for int(m.slot) >= len(f.bySlot) {
				f.bySlot = append(f.bySlot, -1)
			}
			f.bySlot[m.slot] = int32(i)
		}
		if len(r.Models) == 0 {
			f.any++
		}
		for _, model := range r.Models {
			f.serving[model]++
		}
	}
	p.fleet.Store(f)
	return f
}

// ReplicasChanged implements [routing.MembershipObserver].
func (p *Policy) ReplicasChanged(added, removed []*routing.Replica) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range removed {
		p.index.RemoveReplica(r.ID)
		delete(p.known, r.ID)
	}
	for _, r := range added {
		p.known[r.ID] = &member{slot: p.index.AddReplica(r.ID)}
	}
}

// member returns what is known of a replica of any View.
func (p *Policy) member(r *routing.Replica) *member {
	if f := p.fleet.Load(); f != nil && r.Index() < len(f.replicas) && f.replicas[r.Index()] == r {
		return f.members[r.Index()]
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.known[r.ID]; m != nil {
		return m
	}
	return stranger
}

// place returns the place of a holder, and false for one that is not of this fleet.
func (f *fleet) place(h kvindex.Holder) (place, bool) {
	if int(h.Slot) >= len(f.bySlot) || f.bySlot[h.Slot] < 0 {
		return place{}, false
	}
	return place{f.bySlot[h.Slot], int32(h.Depth)}, true
}

// quorum returns how many holders make a block shared: more than the share of
// those that serve the model, and more than few unless that is all of them.
func (f *fleet) quorum(model string, share float64) int {
	n := len(f.replicas)
	if serving := f.serving[model]; model != "" && serving > 0 {
		n = serving + f.any
	}
	return max(int(share*float64(n))+1, min(few+1, n), 2)
}
