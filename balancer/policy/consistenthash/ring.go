package consistenthash

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/twmb/murmur3"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Seed is the seed of [Hash].
const Seed = 0xF9B4CA77

// Hash returns the place of a key on the ring: MurmurHash3_x64_128 with [Seed],
// the first 64 bits. Both halves start from the seed, zero-extended.
func Hash(key string) uint64 {
	h, _ := murmur3.SeedStringSum128(Seed, Seed, key)
	return h
}

// A ring is immutable. Its points are sorted by hash, equal ones by id.
type ring []point

type point struct {
	hash  uint64
	owner *member
}

// A member is a replica on the ring. The Router's lock guards all but the id.
type member struct {
	id     string
	points int
	seen   uint64 // the last walk that met it
	gone   bool   // its points leave the ring
}

func compare(a, b point) int {
	if a.hash != b.hash {
		return cmp.Compare(a.hash, b.hash)
	}
	return strings.Compare(a.owner.id, b.owner.id)
}

// after returns the index of the first point beyond h; behind the last is the first.
func (r ring) after(h uint64) int {
	at := sort.Search(len(r), func(i int) bool { return r[i].hash > h })
	if at == len(r) {
		return 0
	}
	return at
}

// merge returns the ring without the points of members that are gone and with the
// fresh ones, which are sorted.
func (r ring) merge(fresh []point) ring {
	next := make(ring, 0, len(r)+len(fresh))
	for _, p := range r {
		if p.owner.gone {
			continue
		}
		for len(fresh) > 0 && compare(fresh[0], p) < 0 {
			next = append(next, fresh[0])
			fresh = fresh[1:]
		}
		next = append(next, p)
	}
	return append(next, fresh...)
}

// fleetChanged makes the ring that of the fleet, connected or not.
func (p *hashing) fleetChanged(f policy.FleetChange) { p.replace(f.Removed, f.Added) }

// reweigh gives every replica the points that its weight in the View asks for.
func (p *hashing) reweigh(v policy.View) {
	var changed []*policy.Replica
	for _, r := range v.Replicas() {
		if m := p.members[r.ID]; m != nil && m.points != p.pointsOf(r) {
			changed = append(changed, r)
		}
	}
	p.replace(changed, changed)
	p.epoch = v.Epoch()
}

// pointsOf returns how many points a replica has.
func (p *hashing) pointsOf(r *policy.Replica) int {
	return max(1, int(math.Round(float64(p.cfg.NumVirtualNodes)*p.weight(r))))
}

// replace takes replicas off the ring and puts others on it.
func (p *hashing) replace(removed, added []*policy.Replica) {
	if len(removed)+len(added) == 0 {
		return
	}
	for _, r := range removed {
		if m := p.members[r.ID]; m != nil {
			m.gone = true
			delete(p.members, r.ID)
		}
	}
	var fresh []point
	for _, r := range added {
		m := &member{id: r.ID, points: p.pointsOf(r)}
		p.members[r.ID] = m
		name := append([]byte(r.ID), ':')
		for i := range m.points {
			h, _ := murmur3.SeedSum128(Seed, Seed, strconv.AppendInt(name, int64(i), 10))
			fresh = append(fresh, point{h, m})
		}
	}
	slices.SortFunc(fresh, compare)
	p.ring = p.ring.merge(fresh)
}
