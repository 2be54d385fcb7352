// Package consistenthash is the policy "consistent_hash": one session, one
// replica, by a hash ring that every client computes alike.
//
// The rule. Every replica has num_virtual_nodes points on a ring of 64-bit
// hashes. A request's key (its session, or that of the parent, else its request id) is hashed onto the
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
// ring: O(points), 16 bytes each.
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
	"cmp"
	"math"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/strict"
)

// Bounds of [Config].
const (
	maxVirtualNodes = 10_000
	// maxWeight is the largest weight that counts where weighted is set.
	maxWeight = 100
)

// Config are the parameters of consistent_hash.
type Config struct {
	// NumVirtualNodes is the number of points of a replica on the ring; 0 = 100, at most
	// 10,000. More spread the sessions more evenly (100: within about
	// 10 % of the mean) and cost 16 bytes each.
	NumVirtualNodes int `json:"num_virtual_nodes,omitempty" zero:"at least 1"`
	// NumFallbackReplicas is how many replicas after the primary may take a
	// session while those before them are full; 0 = 2, Off = the primary only.
	NumFallbackReplicas policy.Limit `json:"num_fallback_replicas,omitempty" zero:"\"off\" for the primary only"`
	// MaxLoadFactor bounds the reservations of a replica by this multiple of the mean
	// of the connected ones, rounded up; 0 = no bound, else at least 1. Lower
	// balances better and moves more sessions; 1.25 is usual.
	MaxLoadFactor float64 `json:"max_load_factor,omitempty"`
	// Weighted multiplies NumVirtualNodes with the replica's weight.
	Weighted bool `json:"weighted,omitempty"`
}

// Name implements [policy.NamedConfig].
func (Config) Name() string { return Name }

// WithDefaults returns the config with every default written out.
func (c Config) WithDefaults() Config {
	c.NumVirtualNodes = cmp.Or(c.NumVirtualNodes, 100)
	c.NumFallbackReplicas = cmp.Or(c.NumFallbackReplicas, 2)
	return c
}

// validate checks a config with its defaults.
func (c Config) validate() error {
	n := c.NumFallbackReplicas
	whole := n >= 0 && n < 1<<30 && n == policy.Limit(int(n))
	bound := c.MaxLoadFactor >= 1 && !math.IsInf(c.MaxLoadFactor, 1)
	return cmp.Or(
		strict.Within("num_virtual_nodes", c.NumVirtualNodes, 1, maxVirtualNodes),
		strict.Want(whole || n == policy.Off, "num_fallback_replicas: %v is neither a whole number of at least 0 nor off", n),
		strict.Want(bound || c.MaxLoadFactor == 0, "max_load_factor: %v is neither 0 nor at least 1", c.MaxLoadFactor),
	)
}

// Name is the policy's name in a config.
const Name = "consistent_hash"

// hashing is the policy consistent_hash. choose and fleetChanged run under the
// Router's lock, which guards everything but the ring.
type hashing struct {
	cfg       Config
	fallbacks int
	ring      ring

	members map[string]*member // by replica id
	walk    uint64             // number of the walk under way
	epoch   uint64             // of the View whose weights the ring has
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
		Uses:     policy.UsesSession | policy.SharesByKey,
		Choose:   p.choose,
		Preview:  p.choose, // a walk leaves nothing behind
		Observer: policy.Observer{FleetChanged: p.fleetChanged},
	}
}

func newHashing(c Config) (*hashing, error) {
	c = c.WithDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	p := &hashing{cfg: c, fallbacks: max(int(c.NumFallbackReplicas), 0), members: make(map[string]*member)}
	return p, nil
}

func (p *hashing) choose(q *policy.Request, v policy.View) policy.Decision {
	if p.cfg.Weighted && p.epoch != v.Epoch() {
		p.reweigh(v)
	}
	if key := cmp.Or(q.Affinity(), q.ID); key != "" {
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
	ring := p.ring
	bound := p.bound(v)
	p.walk++
	var busy, tried policy.Decision // the first that were passed with room
	var few [8]*policy.Replica
	full := few[:0]
	place, passed, unseen := -1, 0, len(v.Connected())
	for n, at := len(ring), ring.after(h); n > 0 && unseen > 0 && passed <= p.fallbacks; n-- {
		m := ring[at].owner
		if at++; at == len(ring) {
			at = 0
		}
		if m.seen == p.walk {
			continue
		}
		m.seen = p.walk
		place++
		r := v.ByID(m.id)
		if r == nil || !r.Connected() {
			continue
		}
		unseen--
		d := policy.Decision{Replica: r, Reason: policy.ReasonRing, Place: place}
		if place > 0 {
			d.Reason = policy.ReasonRingFallback
		}
		switch {
		case !v.Allowed(q, r):
		case r.Full():
			passed++
			full = append(full, r)
		case q.Tried(r):
			passed++
			if tried.Replica == nil {
				tried = d
			}
		case float64(r.Ongoing()+1) > math.Ceil(bound*p.weight(r)):
			if busy.Replica == nil {
				busy = d
			}
		default:
			return d
		}
	}
	switch {
	case busy.Replica != nil:
		return busy
	case tried.Replica != nil:
		return tried
	}
	return policy.Wait(append([]*policy.Replica(nil), full...)...)
}

// bound returns how many reservations a replica of weight 1 may have, this request included.
func (p *hashing) bound(v policy.View) float64 {
	if p.cfg.MaxLoadFactor == 0 {
		return math.Inf(1)
	}
	ongoing, weight := 1, 0.0
	for _, r := range v.Connected() {
		ongoing += r.Ongoing()
		weight += p.weight(r)
	}
	return p.cfg.MaxLoadFactor * float64(ongoing) / weight
}

func (p *hashing) weight(r *policy.Replica) float64 {
	if !p.cfg.Weighted || r.Weight <= 0 {
		return 1
	}
	return min(r.Weight, maxWeight)
}
