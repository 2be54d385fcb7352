// Package consistenthash is the policy "consistent_hash": one session, one
// replica, by a hash ring that every client computes alike.
//
// The rule. Every replica has num_virtual_nodes points on a ring of 64-bit
// hashes. A request's key (its session, else its request id) is hashed onto the
// ring; the replicas met clockwise from there, each counted once, are its
// order. It goes to the first that is available. A replica that is not
// connected, is draining, is excluded or does not serve the model is skipped; a
// full one, and one that an earlier attempt of the call went to, is passed and
// uses up one of num_fallback_replicas. When the primary and all its fallbacks
// are full the request waits for one of these and goes nowhere else; when the
// only ones with room were tried before, the first of these is tried again. A
// request with neither session nor id has a random place on the ring, the same for
// all its attempts.
//
// With max_load_factor a replica is also passed, without using up a fallback,
// while this request would lift its reservations above that factor times the mean
// of the connected ones; if all are above, the first with room is taken. With
// weighted, a replica has points in proportion to its weight.
//
// Complexity. O(log points) to find the key, then usually one replica looked
// at; 0 allocations while a replica is available. max_load_factor adds a sum
// over the connected replicas for every request. A change of membership hashes
// and sorts the points of the replicas that changed and merges them into the
// ring: O(points), 12 bytes each.
//
// Guarantees. Stickiness: while the fleet does not change and the primary has
// room and a connection, one session has one replica; when one of N replicas
// joins or leaves about 1/N of the sessions move, and no session moves between
// two others. A lost connection moves sessions only while it is down.
// Agreement: the order depends on the ids (and weights, if weighted) and on the
// key alone, not on the fleet's order, its history or the process.
//
// Source: Ray Serve's ConsistentHashRouter, whose hash and points these are (see
// [Hash]); bounded loads are Mirrokni, Thorup and Zadimoghaddam, "Consistent
// Hashing with Bounded Loads". Ray's dead replicas use up a fallback.
package consistenthash

import (
	"math"
	"slices"
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Name is the policy's name in a config.
const Name = "consistent_hash"

// hashing is the policy consistent_hash. choose and fleetChanged run under the
// Router's lock, which guards everything but the ring.
type hashing struct {
	cfg       Config
	fallbacks int
	ring      atomic.Pointer[ring]

	slotOf map[string]uint32 // by replica id
	slots  []slot            // by slot number; parallel to ring.ids
	free   []uint32          // slots without a replica
	walk   uint32            // number of the walk under way
	full   []*policy.Replica // the full ones of the walk under way
	epoch  uint64            // of the View whose weights the ring has
}

// slot is the part of a ring member that changes without a new ring.
type slot struct {
	seen   uint32 // the last walk that met it
	index  int32  // where the replica was last found in View.Replicas
	points int32
}

// New returns the policy with an empty ring.
func New(c Config) (policy.Policy, error) {
	p, err := newHashing(c)
	if err != nil {
		return policy.Policy{}, err
	}
	return p.policy(), nil
}

func (p *hashing) policy() policy.Policy {
	return policy.Policy{
		Uses:        policy.UsesSession | policy.SharesByKey,
		Choose:      p.choose,
		Preview:     p.choose, // a walk leaves nothing behind
		ChooseQuick: p.chooseQuick,
		Observer:    policy.Observer{FleetChanged: p.fleetChanged},
	}
}

func newHashing(c Config) (*hashing, error) {
	c = c.WithDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	p := &hashing{cfg: c, fallbacks: max(int(c.NumFallbackReplicas), 0), slotOf: make(map[string]uint32)}
	p.full = make([]*policy.Replica, 0, min(1+p.fallbacks, 8))
	p.ring.Store(&ring{})
	return p, nil
}

// Order returns the ids of the first n replicas for a key, the primary first,
// whether or not they are connected. Safe from any goroutine.
func (p *hashing) Order(key string, n int) []string {
	return p.ring.Load().order(Hash(key), n)
}

// chooseQuick returns the session's own replica, if it has room and a connection.
func (p *hashing) chooseQuick(q *policy.Request, v policy.View) (*policy.Replica, policy.Reason) {
	ring := p.ring.Load()
	if q.Session == "" || p.cfg.MaxLoadFactor != 0 || p.cfg.Weighted || len(ring.hashes) == 0 {
		return nil, ""
	}
	at := ring.after(Hash(q.Session))
	if at == len(ring.hashes) {
		at = 0
	}
	r := v.ByID(ring.ids[ring.owners[at]])
	if r == nil || !r.Open() {
		return nil, ""
	}
	return r, policy.ReasonRing
}

func (p *hashing) choose(q *policy.Request, v policy.View) policy.Decision {
	key := q.Session
	if key == "" {
		key = q.ID
	}
	if p.cfg.Weighted && p.epoch != v.Epoch() {
		p.reweigh(v)
	}
	if key != "" {
		return p.clockwise(Hash(key), q, v)
	}
	d := p.clockwise(v.Lot(q), q, v)
	if d.Replica != nil {
		d.Reason = policy.ReasonNoKey
	}
	return d
}

// clockwise walks the ring from a hash to the first replica that may have the
// request.
func (p *hashing) clockwise(h uint64, q *policy.Request, v policy.View) policy.Decision {
	ring := p.ring.Load()
	n := len(ring.hashes)
	if n == 0 {
		return policy.Wait()
	}
	p.startWalk()
	bound := p.bound(v)
	var busy, tried policy.Decision // the first that were passed with room
	passed, unseen := 0, len(v.Connected())
	at := ring.after(h)
	for place := -1; n > 0 && unseen > 0 && passed <= p.fallbacks; n-- {
		if at == len(ring.hashes) {
			at = 0
		}
		s := ring.owners[at]
		at++
		if p.slots[s].seen == p.walk {
			continue
		}
		p.slots[s].seen = p.walk
		place++
		r := p.replica(ring, s, v)
		if r == nil || !r.Connected() {
			continue
		}
		unseen--
		switch {
		case !v.Allowed(q, r):
		case r.Full():
			passed++
			p.full = append(p.full, r)
		case q.Tried(r):
			passed++
			keep(&tried, r, place)
		case bound.exceeded(r):
			keep(&busy, r, place)
		default:
			return to(r, place)
		}
	}
	switch {
	case busy.Replica != nil:
		return busy
	case tried.Replica != nil:
		return tried
	}
	return policy.Wait(slices.Clone(p.full)...)
}

func (p *hashing) startWalk() {
	p.full = p.full[:0]
	p.walk++
	if p.walk != 0 {
		return
	}
	for i := range p.slots { // once in 2^32 walks
		p.slots[i].seen = 0
	}
	p.walk = 1
}

// replica returns the replica in a slot. The View may list the fleet in any
// order: a replica that is not at its last index is found by its id.
func (p *hashing) replica(ring *ring, s uint32, v policy.View) *policy.Replica {
	rs, id := v.Replicas(), ring.ids[s]
	if i := int(p.slots[s].index); i < len(rs) && rs[i].ID == id {
		return rs[i]
	}
	r := v.ByID(id)
	if r != nil {
		p.slots[s].index = int32(r.Index())
	}
	return r
}

func keep(d *policy.Decision, r *policy.Replica, place int) {
	if d.Replica == nil {
		*d = to(r, place)
	}
}

func to(r *policy.Replica, place int) policy.Decision {
	d := policy.Decision{Replica: r, Reason: policy.ReasonRing, Place: place}
	if place > 0 {
		d.Reason = policy.ReasonRingFallback
	}
	return d
}

// bound is how many reservations a replica of weight 1 may have; 0 = no bound.
type bound struct {
	perWeight float64
	weighted  bool
}

// bound adds up the connected replicas, this request included, if
// max_load_factor asks for it.
func (p *hashing) bound(v policy.View) bound {
	if p.cfg.MaxLoadFactor == 0 {
		return bound{}
	}
	ongoing, weight := 1, 0.0
	for _, r := range v.Connected() {
		ongoing += r.Ongoing()
		weight += p.weight(r)
	}
	return bound{perWeight: p.cfg.MaxLoadFactor * float64(ongoing) / weight, weighted: p.cfg.Weighted}
}

// exceeded reports whether one more reservation would be more than the replica may have.
func (b bound) exceeded(r *policy.Replica) bool {
	if b.perWeight == 0 {
		return false
	}
	limit := b.perWeight
	if b.weighted {
		limit *= weightOf(r)
	}
	return float64(r.Ongoing()+1) > math.Ceil(limit)
}

func (p *hashing) weight(r *policy.Replica) float64 {
	if !p.cfg.Weighted {
		return 1
	}
	return weightOf(r)
}

func weightOf(r *policy.Replica) float64 {
	if r.Weight <= 0 {
		return 1
	}
	return min(r.Weight, maxWeight)
}
