// Package roundrobin is the policy "round_robin": one replica after the other.
//
// The rule. The first request goes to a random replica, so that clients that
// start together do not go in step; every later one to the next replica in
// the fleet's order. A replica that is not available is skipped, and the cursor
// moves behind the one that is picked, so that one does not get two. Locality
// does not matter. After a failed attempt those not tried yet come first.
//
// A request for a LoRA adapter goes round the replicas that have it loaded,
// else those with the fewest adapters, else all, with a cursor of its own for
// each adapter. The cursors of 1,024 adapters are kept, and any of them makes room
// for another; one that was forgotten starts at random again.
//
// Complexity. O(1) plus the replicas skipped; after a change of membership the
// first request for an adapter looks once at every replica. Choose does not
// allocate but for an adapter that has no cursor.
//
// Guarantees. While the connected replicas do not change and are available, any
// n requests in a row without an adapter go to n different ones of n.
//
// Source: Ray Serve's RoundRobinRouter, whose counter also advances when it
// skips, so that the neighbour of a full replica is picked twice in a row there.
package roundrobin

import (
	"hash/maphash"
	"slices"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Name is the policy's name in a config.
const Name = "round_robin"

// maxAdapters is how many adapters have a cursor of their own.
const maxAdapters = 1024

// Config has no parameters.
type Config struct{}

// Name implements [policy.NamedConfig].
func (Config) Name() string { return Name }

// New returns the policy.
func New(Config) (policy.Policy, error) { return newRotation().policy(), nil }

func newRotation() *rotation {
	return &rotation{seed: maphash.MakeSeed(), byAdapter: make(map[uint64]*cursor)}
}

func (p *rotation) policy() policy.Policy {
	return policy.Policy{
		Choose:   p.choose,
		Preview:  p.preview,
		Observer: policy.Observer{Withdrawn: p.withdrawn},
	}
}

// rotation is the policy round_robin. The Router's lock guards it.
type rotation struct {
	plain cursor // of requests without an adapter

	// The cursors of adapters, by the adapter's hash: names come from callers and
	// may be long.
	byAdapter map[uint64]*cursor
	seed      maphash.Seed

	epoch    uint64 // of the View for which declared was found
	declared bool   // a replica declares adapters: else a request's adapter does not matter
}

// A cursor is a place in the rotation. The zero value is one that has not started.
type cursor struct {
	next uint64 // one more than the place of the next pick; 0 = not started
	last string // id of the replica that choose picked last
}

func (p *rotation) choose(q *policy.Request, v policy.View) policy.Decision {
	c := p.cursorOf(q, v)
	if c == nil {
		for adapter := range p.byAdapter {
			if len(p.byAdapter) < maxAdapters {
				break
			}
			delete(p.byAdapter, adapter)
		}
		c = new(cursor)
		p.byAdapter[maphash.String(p.seed, q.Adapter)] = c
	}
	if c.next == 0 {
		c.next = start(v)
	}
	r, moved := p.pick(q, v, c.next)
	if r != nil {
		c.next += moved
		c.last = r.ID
	}
	return policy.To(r, policy.ReasonRoundRobin)
}

// preview is choose, and the cursor stays.
func (p *rotation) preview(q *policy.Request, v policy.View) policy.Decision {
	next := uint64(0)
	if c := p.cursorOf(q, v); c != nil {
		next = c.next
	}
	if next == 0 {
		next = start(v)
	}
	r, _ := p.pick(q, v, next)
	return policy.To(r, policy.ReasonRoundRobin)
}

// withdrawn makes the replica of a withdrawn pick the next one, unless others have been picked since.
func (p *rotation) withdrawn(q *policy.Request, d policy.Decision) {
	if c := p.cursorOf(q, nil); c != nil && c.last == d.Replica.ID {
		c.next--
		c.last = ""
	}
}

// pick returns the next of the first tier with an available replica, of the whole fleet
// where there are no tiers of adapters, and how far the cursor moves to stand behind it.
func (p *rotation) pick(q *policy.Request, v policy.View, next uint64) (r *policy.Replica, moved uint64) {
	for i := 0; ; i++ {
		pool, ok := v.Pool(q, i)
		if !ok {
			return nil, 0
		}
		if !pool.Whole && !p.tiers(q) {
			continue // a tier of locality
		}
		n := uint64(len(pool.Replicas))
		for skipped := range n {
			if r := pool.Replicas[(next-1+skipped)%n]; pool.Takes(r) {
				return r, skipped + 1
			}
		}
	}
}

// start draws where a cursor starts.
func start(v policy.View) uint64 { return uint64(v.IntN(1<<31)) + 1 }

// tiers reports whether the request goes round tiers of adapters.
func (p *rotation) tiers(q *policy.Request) bool { return q.Adapter != "" && p.declared }

// cursorOf returns the request's cursor, nil where its adapter has none yet. Without a
// View it is that of the View before.
func (p *rotation) cursorOf(q *policy.Request, v policy.View) *cursor {
	if v != nil && q.Adapter != "" && p.epoch != v.Epoch() {
		p.epoch = v.Epoch()
		p.declared = slices.ContainsFunc(v.Replicas(), func(r *policy.Replica) bool { return len(r.Adapters) > 0 })
	}
	if p.tiers(q) {
		return p.byAdapter[maphash.String(p.seed, q.Adapter)]
	}
	return &p.plain
}
