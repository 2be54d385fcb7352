package consistenthash

import (
	"math"
	"math/bits"
	"slices"
	"strconv"

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
type ring struct {
	hashes []uint64
	owners []uint32 // slot of the point's replica
	ids    []string // by slot; "" where the slot is free
}

type point struct {
	hash  uint64
	owner uint32
}

// after returns the index of the first point beyond h, len(hashes) if none.
func (r *ring) after(h uint64) int {
	lo, hi := 0, len(r.hashes)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if r.hashes[mid] <= h {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

func (r *ring) order(h uint64, n int) []string {
	var ids []string
	seen := make(map[uint32]bool)
	at := r.after(h)
	for range r.hashes {
		if len(ids) >= n {
			break
		}
		if at == len(r.hashes) {
			at = 0
		}
		if s := r.owners[at]; !seen[s] {
			seen[s] = true
			ids = append(ids, r.ids[s])
		}
		at++
	}
	return ids
}

// merge returns the ring without the points of the slots in gone and with the
// fresh ones, which are sorted. ids names the slots of the new ring, and those
// of the fresh points.
func (r *ring) merge(gone []bool, fresh []point, points int, ids []string) *ring {
	next := &ring{hashes: make([]uint64, 0, points), owners: make([]uint32, 0, points), ids: ids}
	for i, h := range r.hashes {
		owner := r.owners[i]
		if int(owner) < len(gone) && gone[owner] {
			continue
		}
		for len(fresh) > 0 && (fresh[0].hash < h || fresh[0].hash == h && ids[fresh[0].owner] < ids[owner]) {
			next.hashes = append(next.hashes, fresh[0].hash)
			next.owners = append(next.owners, fresh[0].owner)
			fresh = fresh[1:]
		}
		next.hashes = append(next.hashes, h)
		next.owners = append(next.owners, owner)
	}
	for _, p := range fresh {
		next.hashes = append(next.hashes, p.hash)
		next.owners = append(next.owners, p.owner)
	}
	return next
}

// fleetChanged makes the ring that of the fleet, connected or not.
func (p *hashing) fleetChanged(f policy.FleetChange) {
	if len(f.Added)+len(f.Removed) == 0 {
		return
	}
	c := p.change()
	for _, r := range f.Removed {
		c.remove(r.ID)
	}
	for _, r := range f.Added {
		c.remove(r.ID)
		c.add(r)
	}
	c.commit()
}

// reweigh gives every replica the points that its weight in the View asks for.
func (p *hashing) reweigh(v policy.View) {
	c := p.change()
	for _, r := range v.Replicas() {
		if s, ok := p.slotOf[r.ID]; ok && int(p.slots[s].points) != p.pointsOf(r) {
			c.remove(r.ID)
			c.add(r)
		}
	}
	c.commit()
	p.epoch = v.Epoch()
}

// pointsOf returns how many points a replica has.
func (p *hashing) pointsOf(r *policy.Replica) int {
	return max(1, int(math.Round(float64(p.cfg.NumVirtualNodes)*p.weight(r))))
}

// A change collects the replicas that join and leave, for one merge of the ring.
type change struct {
	p      *hashing
	gone   []bool // by slot of the present ring
	fresh  []point
	points int
	ids    []string
	buf    []byte
	dirty  bool
}

func (p *hashing) change() *change {
	r := p.ring.Load()
	return &change{p: p, gone: make([]bool, len(r.ids)), points: len(r.hashes), ids: slices.Clone(r.ids)}
}

func (c *change) remove(id string) {
	p := c.p
	s, ok := p.slotOf[id]
	if !ok {
		return
	}
	c.dirty = true
	c.gone[s] = true
	c.points -= int(p.slots[s].points)
	c.ids[s] = ""
	p.slots[s] = slot{}
	p.free = append(p.free, s)
	delete(p.slotOf, id)
}

func (c *change) add(r *policy.Replica) {
	p := c.p
	n := p.pointsOf(r)
	var s uint32
	if last := len(p.free) - 1; last >= 0 {
		s = p.free[last]
		p.free = p.free[:last]
	} else {
		s = uint32(len(p.slots))
		p.slots = append(p.slots, slot{})
		c.ids = append(c.ids, "")
	}
	c.dirty = true
	c.points += n
	c.ids[s] = r.ID
	p.slots[s] = slot{index: int32(r.Index()), points: int32(n)}
	p.slotOf[r.ID] = s
	c.buf = append(append(c.buf[:0], r.ID...), ':')
	prefix := len(c.buf)
	for i := range n {
		c.buf = strconv.AppendInt(c.buf[:prefix], int64(i), 10)
		h, _ := murmur3.SeedSum128(Seed, Seed, c.buf)
		c.fresh = append(c.fresh, point{h, s})
	}
}

func (c *change) commit() {
	if !c.dirty {
		return
	}
	fresh := sorted(c.fresh, c.ids)
	c.p.ring.Store(c.p.ring.Load().merge(c.gone, fresh, c.points, c.ids))
	clear(c.p.full[:cap(c.p.full)]) // it may name replicas that left
}

// sorted returns the points by hash, equal ones by id. Hashes are uniform, so a
// distribution by their leading bits leaves next to nothing to sort: O(points).
func sorted(points []point, ids []string) []point {
	shift := 64 - bits.Len(uint(len(points)))
	starts := make([]uint32, 1<<(64-shift)+1)
	for _, p := range points {
		starts[p.hash>>shift+1]++
	}
	for i := 1; i < len(starts); i++ {
		starts[i] += starts[i-1]
	}
	out := make([]point, len(points))
	for _, p := range points {
		out[starts[p.hash>>shift]] = p
		starts[p.hash>>shift]++
	}
	for i := 1; i < len(out); i++ {
		p := out[i]
		j := i
		for ; j > 0 && (p.hash < out[j-1].hash || p.hash == out[j-1].hash && ids[p.owner] < ids[out[j-1].owner]); j-- {
			out[j] = out[j-1]
		}
		out[j] = p
	}
	return out
}
