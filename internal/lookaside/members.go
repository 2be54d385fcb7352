package lookaside

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/fleet"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// maxReplicas bounds a fleet.
const maxReplicas = 100_000

// members is the fleet: the replicas that the server names, and others that stay. It is used with view.mu held.
type members struct {
	named map[uint32]replica
	kept  map[string]replica // by id; not named
	known bool               // anything at all

	parts *warmpathv1.FleetUpdate // the parts of an update whose last one is still to come; nil = none
}

// A replica is one as the server describes it.
type replica struct {
	policy.Attributes
	kvTokens int       // size of its cache
	until    time.Time // one that is not named stays at least as long; zero: it was named, and is not any more
}

// forever is how long replicas stay until a server has named any.
var forever = time.Unix(1<<40, 0)

func newMembers() members {
	return members{named: make(map[uint32]replica), kept: make(map[string]replica)}
}

// recall begins with what was known before.
func (m *members) recall(replicas []policy.Attributes) {
	for _, r := range replicas {
		m.kept[r.ID] = replica{Attributes: r, until: forever}
	}
	m.known = true
}

// restart forgets the numbers of a server that is gone. The replicas that it named stay until another server names
// any, however long that takes.
func (m *members) restart() {
	for _, r := range m.named {
		r.until = forever
		m.kept[r.ID] = r
	}
	clear(m.named)
}

// begin is for a server's first message: from here on the grace of the replicas that it does not name runs.
func (m *members) begin(end time.Time) {
	m.parts = nil
	for id, k := range m.kept {
		if k.until.After(end) {
			k.until = end
			m.kept[id] = k
		}
	}
}

// gather returns an update once all of its parts have come, else nil.
func (m *members) gather(u *warmpathv1.FleetUpdate) *warmpathv1.FleetUpdate {
	if m.parts == nil {
		m.parts = &warmpathv1.FleetUpdate{Version: u.GetVersion(), Snapshot: u.GetSnapshot()}
	}
	if len(m.parts.GetReplicas()) <= maxReplicas { // take passes over what is beyond
		m.parts.Replicas = append(m.parts.Replicas, u.GetReplicas()...)
		m.parts.Removed = append(m.parts.Removed, u.GetRemoved()...)
	}
	if u.GetMore() {
		return nil
	}
	whole := m.parts
	m.parts = nil
	return whole
}

// take enters an update. It returns the numbers that have left, and an error where replicas were passed over.
func (m *members) take(u *warmpathv1.FleetUpdate) (left []uint32, err error) {
	m.known = true
	left = slices.Clone(u.GetRemoved())
	if u.GetSnapshot() {
		gone := maps.Clone(m.named)
		for _, r := range u.GetReplicas() {
			delete(gone, r.GetNumber())
		}
		left = slices.AppendSeq(left, maps.Keys(gone))
	}
	for _, n := range left {
		if r, ok := m.named[n]; ok {
			delete(m.named, n)
			m.kept[r.ID] = r
		}
	}
	for _, p := range u.GetReplicas() {
		r, bad := replicaOf(p)
		if bad == nil && len(m.named) >= maxReplicas {
			bad = fmt.Errorf("more than %d replicas", maxReplicas)
		}
		if bad != nil {
			err = bad
			continue
		}
		if old, ok := m.named[p.GetNumber()]; ok && old.ID != r.ID {
			m.kept[old.ID] = old
		}
		m.named[p.GetNumber()] = r
	}
	for _, r := range m.named {
		delete(m.kept, r.ID)
	}
	return left, err
}

// settle drops the replicas that need not stay. connected reports whether one is.
func (m *members) settle(now time.Time, connected func(id string) bool) (changed bool) {
	reached := false
	if len(m.kept) > 0 {
		for _, r := range m.named {
			reached = reached || connected(r.ID)
		}
	}
	before := len(m.kept)
	maps.DeleteFunc(m.kept, func(id string, k replica) bool {
		return !now.Before(k.until) && (reached || !connected(id))
	})
	return len(m.kept) != before
}

// all returns the fleet: the named replicas in the order of their numbers, then the others by id.
func (m *members) all() []policy.Attributes {
	fleet := make([]policy.Attributes, 0, len(m.named)+len(m.kept))
	for _, n := range m.numbers() {
		fleet = append(fleet, m.named[n].Attributes)
	}
	for _, id := range slices.Sorted(maps.Keys(m.kept)) {
		fleet = append(fleet, m.kept[id].Attributes)
	}
	return fleet
}

func (m *members) numbers() []uint32 { return slices.Sorted(maps.Keys(m.named)) }

// replicaOf reads a replica as a server describes it. The KV events are the server's own affair.
func replicaOf(p *warmpathv1.Replica) (replica, error) {
	const most = 1 << 40 // no cache is larger, and it fits everywhere
	r := replica{Attributes: fleet.FromMessage(p), kvTokens: int(min(p.GetKvTokens(), most))}
	r.KVEvents, r.KVEventsReplay = "", ""
	if err := fleet.Settle(&r.Attributes); err != nil {
		return replica{}, fmt.Errorf("replica %q: %w", p.GetId(), err)
	}
	return r, nil
}
