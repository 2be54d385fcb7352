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
// each adapter. The cursors of the last 1,024
// adapters are kept; one that was forgotten starts at random again.
//
// Complexity. O(1) plus the replicas skipped; after a change of membership the
// first request for an adapter looks once at every replica. Choose does not
// allocate but for growing the table of adapters to its bound.
//
// Guarantees. While the connected replicas do not change and are available, any
// n requests in a row without an adapter go to n different ones of n.
//
// Source: Ray Serve's RoundRobinRouter, whose counter also advances when it
// skips, so that the neighbour of a full replica is picked twice in a row there.
package roundrobin

import (
	"hash/maphash"
	"sync/atomic"

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

func newRotation() *rotation { return &rotation{seed: maphash.MakeSeed()} }

func (p *rotation) policy() policy.Policy {
	return policy.Policy{
		Choose:      p.choose,
		Preview:     p.preview,
		ChooseQuick: p.chooseQuick,
		Observer:    policy.Observer{Withdrawn: p.withdrawn},
	}
}

// rotation is the policy round_robin. All but the atomics is guarded by the Router's lock.
type rotation struct {
	// next is the cursor of requests without an adapter, once started.
	started atomic.Bool
	next    atomic.Uint64
	last    string // id of the replica that choose picked last for such a request

	// epoch is the View's for which adapters was found: whether any replica
	// declares adapters.
	epoch    uint64
	adapters bool

	// Cursors of adapters, by the adapter's hash: names come from callers and
	// may be long. byAdapter points into cursors, a circle in order of arrival.
	seed      maphash.Seed
	cursors   []cursor
	oldest    int
	byAdapter map[uint64]int
}

type cursor struct {
	adapter uint64 // its hash
	next    uint64
	last    string // id of the replica picked last
}

func (p *rotation) choose(q *policy.Request, v policy.View) policy.Decision {
	if len(v.Connected()) == 0 {
		return policy.Wait()
	}
	if q.Adapter == "" || !p.adaptersIn(v) {
		return p.choosePlain(q, v)
	}
	c := p.cursorFor(q, v)
	d := next(q, v, true, &c.next)
	if d.Replica != nil {
		c.last = d.Replica.ID
	}
	return d
}

func (p *rotation) choosePlain(q *policy.Request, v policy.View) policy.Decision {
	if !p.started.Load() {
		p.next.Store(start(v))
		p.started.Store(true)
	}
	from := p.next.Load()
	to := from
	d := next(q, v, false, &to)
	if d.Replica != nil {
		p.next.Add(to - from) // quick picks move it too
		p.last = d.Replica.ID
	}
	return d
}

// chooseQuick returns the next replica, if it has room and a connection.
func (p *rotation) chooseQuick(_ *policy.Request, v policy.View) (*policy.Replica, policy.Reason) {
	all := v.Connected()
	if len(all) == 0 || !p.started.Load() {
		return nil, ""
	}
	r := all[(p.next.Add(1)-1)%uint64(len(all))]
	if !r.Open() {
		return nil, "" // choose goes on behind it
	}
	return r, policy.ReasonRoundRobin
}

// preview is choose, and the cursor stays.
func (p *rotation) preview(q *policy.Request, v policy.View) policy.Decision {
	if len(v.Connected()) == 0 {
		return policy.Wait()
	}
	tiers := q.Adapter != "" && p.adaptersIn(v)
	at, known := p.next.Load(), p.started.Load()
	if tiers {
		c := p.cursorOf(q)
		if known = c != nil; known {
			at = c.next
		}
	}
	if !known {
		at = start(v)
	}
	return next(q, v, tiers, &at)
}

// withdrawn makes the replica of a withdrawn pick the next one, unless others have been picked since.
func (p *rotation) withdrawn(q *policy.Request, d policy.Decision) {
	if q.Adapter == "" || !p.adapters {
		if p.last == d.Replica.ID {
			p.next.Add(^uint64(0))
			p.last = ""
		}
		return
	}
	if c := p.cursorOf(q); c != nil && c.last == d.Replica.ID {
		c.next, c.last = c.next-1, ""
	}
}

// next picks the next of the first tier with an available replica, of the whole fleet
// where there are no tiers of adapters.
func next(q *policy.Request, v policy.View, tiers bool, cursor *uint64) policy.Decision {
	for i := 0; ; i++ {
		pool, ok := v.Pool(q, i)
		if !ok {
			return policy.Wait()
		}
		if !tiers && !pool.Whole {
			continue // a tier of locality
		}
		if r := after(pool, cursor); r != nil {
			return policy.To(r, policy.ReasonRoundRobin)
		}
	}
}

// after returns the first that the pool takes from the cursor on, and moves the
// cursor behind it. The cursor stays when there is none.
func after(pool policy.Pool, next *uint64) *policy.Replica {
	n := uint64(len(pool.Replicas))
	at := *next % n
	for skipped := range n {
		r := pool.Replicas[at]
		if pool.Takes(r) {
			*next += skipped + 1
			return r
		}
		if at++; at == n {
			at = 0
		}
	}
	return nil
}

func start(v policy.View) uint64 { return uint64(v.IntN(1 << 31)) }

// cursorOf returns the cursor of the request's adapter, nil if there is none yet.
func (p *rotation) cursorOf(q *policy.Request) *cursor {
	if at, ok := p.byAdapter[maphash.String(p.seed, q.Adapter)]; ok {
		return &p.cursors[at]
	}
	return nil
}

// cursorFor returns the cursor of the request's adapter, a new one where there is none.
func (p *rotation) cursorFor(q *policy.Request, v policy.View) *cursor {
	if c := p.cursorOf(q); c != nil {
		return c
	}
	adapter := maphash.String(p.seed, q.Adapter)
	c := cursor{adapter: adapter, next: start(v)}
	if p.byAdapter == nil {
		p.byAdapter = make(map[uint64]int)
	}
	at := len(p.cursors)
	if at < maxAdapters {
		p.cursors = append(p.cursors, c)
	} else {
		at = p.oldest
		p.oldest = (p.oldest + 1) % maxAdapters
		delete(p.byAdapter, p.cursors[at].adapter)
		p.cursors[at] = c
	}
	p.byAdapter[adapter] = at
	return &p.cursors[at]
}

// adaptersIn reports whether any replica of the fleet declares adapters: if
// none does, a request's adapter does not matter.
func (p *rotation) adaptersIn(v policy.View) bool {
	if p.epoch == v.Epoch() {
		return p.adapters
	}
	p.epoch, p.adapters = v.Epoch(), false
	for _, r := range v.Replicas() {
		if len(r.Adapters) > 0 {
			p.adapters = true
			break
		}
	}
	return p.adapters
}
