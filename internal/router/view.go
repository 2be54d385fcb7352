package router

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router/load"
	"github.com/warmpath/warmpath/internal/router/state"
)

// A view is an immutable snapshot of the whole fleet: the [policy.View] of a Router.
type view struct {
	fleet     *membership
	connected []*policy.Replica
	leaving   []*policy.Replica    // connected and draining
	near      [2][]*policy.Replica // connected, on our node; connected, in our zone
	fewest    []*policy.Replica    // connected, with the fewest adapters loaded; nil where the fleet has none
	shared    *shared
}

// membership is what a change of connectivity leaves as it is. It is a [state.Fleet].
type membership struct {
	epoch    uint64
	replicas []*policy.Replica
	byID     map[string]*policy.Replica
	models   map[string]bool              // declared by at least one replica
	loaded   map[string][]*policy.Replica // by adapter, connected or not; nil where no replica declares adapters
}

func (m *membership) Len() int { return len(m.replicas) }

func (m *membership) Place(id string) (place int, ok bool) {
	r := m.byID[id]
	if r == nil {
		return 0, false
	}
	return r.Index(), true
}

func (m *membership) Has(r *state.Replica, place int) bool {
	return place < len(m.replicas) && m.replicas[place].State() == r
}

// shared is what all views of a Router have in common.
type shared struct {
	load *load.Tracker
	rand *rand.Rand // guarded by the Router's mutex
	now  func() time.Time

	outliers *outlier.Detector
}

func (v *view) Epoch() uint64 { return v.fleet.epoch }

func (v *view) Replicas() []*policy.Replica { return v.fleet.replicas }

func (v *view) Connected() []*policy.Replica { return v.connected }

func (v *view) ByID(id string) *policy.Replica { return v.fleet.byID[id] }

// current returns what this view has for a replica that may stem from an older
// one: r itself as a rule, nil when it has left.
func (v *view) current(r *policy.Replica) *policy.Replica {
	if i := r.Index(); i < len(v.fleet.replicas) && v.fleet.replicas[i] == r {
		return r
	}
	return v.fleet.byID[r.ID]
}

func (v *view) Now() time.Time { return v.shared.now() }

// open returns how many replicas are connected and do not drain.
func (v *view) open() int { return len(v.connected) - len(v.leaving) }

func (v *view) IntN(n int) int { return v.shared.rand.IntN(n) }

func (v *view) Lot(q *policy.Request) uint64 {
	s := q.State()
	for s.Lot == 0 {
		s.Lot = v.shared.rand.Uint64()
	}
	return s.Lot
}

func (v *view) Load(r *policy.Replica) float64 {
	s := r.State()
	return v.shared.load.Of(s, s.Book.Load())
}

// MeanPeerLoad returns the mean of the load that others are known to have on the
// replicas, in tokens, whatever the replicas' rates: the part of the mean load that is
// damping. O(1).
func (v *view) MeanPeerLoad() float64 {
	return v.shared.load.PeerSum() / float64(max(len(v.fleet.replicas), 1))
}

func (v *view) Available(q *policy.Request, r *policy.Replica) bool {
	s := r.State()
	return s.Flags.Load()&(state.Connected|state.Barred) == state.Connected && !s.Full() && v.usable(q, r)
}

// Allowed is the part of availability that waiting cannot change.
func (v *view) Allowed(q *policy.Request, r *policy.Replica) bool {
	return r.State().Flags.Load()&state.Barred == 0 && v.usable(q, r)
}

func (v *view) usable(q *policy.Request, r *policy.Replica) bool {
	s := q.State()
	if s.Keeper != r.State() && (r.Draining || !s.LastResort && leaves(r)) || excluded(q, r) {
		return false
	}
	return q.Model == "" || s.AnyModel || serves(r, q.Model)
}

// excluded reports whether the request itself rules the replica out.
func excluded(q *policy.Request, r *policy.Replica) bool {
	return len(q.Exclude)+len(q.Allow) > 0 && q.State().Excludes(q.Exclude, q.Allow, r.State(), r.Index(), r.ID)
}

// narrow prepares the request's lists for the view, where they are long.
func (v *view) narrow(q *policy.Request) { q.State().Narrow(v.fleet, q.Exclude, q.Allow) }

// anyModel reports whether the request's model filters nothing, because no replica
// of the fleet declares it.
func (v *view) anyModel(q *policy.Request) bool {
	return q.Model != "" && !v.fleet.models[q.Model]
}

// A pool is a [policy.Pool].
type pool struct {
	replicas []*policy.Replica
	view     *view
	request  *policy.Request
	untried  bool
}

func (p *pool) takes(r *policy.Replica) bool {
	return p.view.Available(p.request, r) && !(p.untried && p.request.Tried(r))
}

func (v *view) Pool(q *policy.Request, i int) (policy.Pool, bool) {
	p, whole, ok := v.pool(q, i)
	return policy.Pool{Replicas: p.replicas, Whole: whole, Untried: p.untried, View: v, Request: q}, ok
}

func (v *view) pool(q *policy.Request, i int) (p pool, whole, ok bool) {
	tiers, n := v.tiers(q)
	retry := len(q.State().Tried) > 0
	if i >= n && (!retry || i >= 2*n) {
		return pool{}, false, false
	}
	return pool{tiers[i%n], v, q, retry && i < n}, i%n == n-1, true
}

func (v *view) tiers(q *policy.Request) (t [3][]*policy.Replica, n int) {
	add := func(rs []*policy.Replica) {
		if len(rs) > 0 {
			t[n] = rs
			n++
		}
	}
	if q.Adapter != "" && v.fleet.loaded != nil {
		add(v.fleet.loaded[q.Adapter])
		add(v.fewest)
	} else {
		add(v.near[0])
		add(v.near[1])
	}
	t[n] = v.connected
	return t, n + 1
}

func (v *view) LeastLoaded(q *policy.Request) *policy.Replica {
	for i := 0; ; i++ {
		p, _, ok := v.pool(q, i)
		if !ok {
			return nil
		}
		var best *policy.Replica
		var least float64
		for _, r := range p.replicas {
			if !p.takes(r) {
				continue
			}
			if l := v.Load(r); best == nil || l < least {
				best, least = r, l
			}
		}
		if best != nil {
			return best
		}
	}
}

// build fills the lists that depend on which replicas are connected. O(replicas).
func (v *view) build(o *Options) {
	for _, r := range v.fleet.replicas {
		if r.Connected() {
			v.each(r, o, func(list *[]*policy.Replica) { *list = append(*list, r) })
		}
	}
	v.countAdapters()
}

// changed returns the view after a replica's connection came up or went down, whose lists differ by this replica.
func (v *view) changed(r *policy.Replica, up bool, o *Options) *view {
	next := *v
	next.each(r, o, func(list *[]*policy.Replica) { *list = edited(*list, r, up) })
	if v.fleet.loaded == nil {
		return &next
	}
	switch n := len(r.Adapters); {
	case len(v.fewest) == 0 || up && n < len(v.fewest[0].Adapters):
		next.countAdapters()
	case n > len(v.fewest[0].Adapters):
	default:
		if next.fewest = edited(v.fewest, r, up); len(next.fewest) == 0 {
			next.countAdapters()
		}
	}
	return &next
}

// each calls do with every list, but for fewest, that the replica stands in while it is connected.
func (v *view) each(r *policy.Replica, o *Options, do func(list *[]*policy.Replica)) {
	do(&v.connected)
	if r.Drains() {
		do(&v.leaving)
	}
	if o.Node != "" && r.Node == o.Node {
		do(&v.near[0])
	}
	if o.Zone != "" && r.Zone == o.Zone {
		do(&v.near[1])
	}
}

// countAdapters makes fewest of connected. O(replicas).
func (v *view) countAdapters() {
	v.fewest = nil
	if v.fleet.loaded == nil {
		return
	}
	for _, r := range v.connected {
		if len(v.fewest) > 0 && len(r.Adapters) < len(v.fewest[0].Adapters) {
			v.fewest = v.fewest[:0]
		}
		if len(v.fewest) == 0 || len(r.Adapters) == len(v.fewest[0].Adapters) {
			v.fewest = append(v.fewest, r)
		}
	}
}

// edited returns a copy of a list in the fleet's order with a replica or without it.
func edited(list []*policy.Replica, r *policy.Replica, with bool) []*policy.Replica {
	at, found := slices.BinarySearchFunc(list, r.Index(), func(o *policy.Replica, index int) int {
		return o.Index() - index
	})
	switch {
	case found == with:
		return list
	case with:
		return slices.Insert(slices.Clip(list), at, r)
	}
	return append(slices.Clone(list[:at]), list[at+1:]...)
}

// draws is how often LeastOfTwo draws from a pool before it scans it.
const draws = 8

func (v *view) LeastOfTwo(q *policy.Request) *policy.Replica {
	for i := 0; ; i++ {
		p, _, ok := v.pool(q, i)
		if !ok {
			return nil
		}
		if r := p.leastOfTwo(); r != nil {
			return r
		}
	}
}

func (p *pool) leastOfTwo() *policy.Replica {
	n := len(p.replicas)
	if n <= 2 {
		return p.scanForTwo()
	}
	var first *policy.Replica
	for range draws {
		r := p.replicas[p.view.IntN(n)]
		switch {
		case r == first || !p.takes(r):
		case first == nil:
			first = r
		default:
			return fewerOngoing(first, r)
		}
	}
	return p.scanForTwo()
}

// scanForTwo draws two uniformly from those the pool takes, in random order, in
// one pass (reservoir sampling).
func (p *pool) scanForTwo() *policy.Replica {
	var two [2]*policy.Replica
	found := 0
	for _, r := range p.replicas {
		if !p.takes(r) {
			continue
		}
		at := found
		found++
		if found > 2 {
			at = p.view.IntN(found)
		}
		if at < 2 {
			two[at] = r
		}
	}
	if found < 2 {
		return two[0]
	}
	if p.view.IntN(2) == 1 {
		two[0], two[1] = two[1], two[0]
	}
	return fewerOngoing(two[0], two[1])
}

func fewerOngoing(first, second *policy.Replica) *policy.Replica {
	if second.State().UnderWay() < first.State().UnderWay() {
		return second
	}
	return first
}

func (v *view) QuickLeastOfTwo() *policy.Replica {
	n := uint64(len(v.connected))
	if n < 3 || len(v.near[0])+len(v.near[1]) > 0 {
		return nil
	}
	x := rand.Uint64()
	i, j := x>>32*n>>32, x&(1<<32-1)*(n-1)>>32
	if j >= i {
		j++
	}
	r, other := v.connected[i], v.connected[j]
	if other.State().UnderWay() < r.State().UnderWay() {
		r, other = other, r
	}
	if r.Draining || !other.Open() { // Quick.Pick checks the rest of r
		return nil
	}
	return r
}
