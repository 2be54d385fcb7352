package router

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
)

// A view is an immutable snapshot of the whole fleet: the [policy.View] of a Router.
type view struct {
	router *Router

	epoch    uint64
	replicas []*policy.Replica
	places   map[string]int               // of the replicas, by id
	models   map[string]bool              // declared by at least one replica
	loaded   map[string][]*policy.Replica // by adapter, connected or not; nil where no replica declares adapters

	// The views of those that serve whole requests, and of those that may prefill for others. Where no replica has a
	// role they are this view itself, and nil.
	whole, prefill *view

	listed bool // the lists below are made before the view is in force

	// What connections change, made by list or relist.
	connected []*policy.Replica
	leaving   []*policy.Replica    // connected and draining
	near      [2][]*policy.Replica // connected, on our node; connected, in our zone
	fewest    []*policy.Replica    // connected, with the fewest adapters loaded; nil where the fleet has none
}

// newView returns a view of an empty fleet.
func newView(r *Router, epoch uint64) *view {
	v := &view{router: r, epoch: epoch, places: make(map[string]int), models: make(map[string]bool)}
	v.whole = v
	return v
}

// add puts a replica behind the others.
func (v *view) add(r *policy.Replica) {
	v.places[r.ID] = len(v.replicas)
	v.replicas = append(v.replicas, r)
	for _, adapter := range r.Adapters {
		if v.loaded == nil {
			v.loaded = make(map[string][]*policy.Replica)
		}
		v.loaded[adapter] = append(v.loaded[adapter], r)
	}
	for _, model := range r.Models {
		v.models[model] = true
	}
}

// divide makes the views of the replicas that serve, and of those that prefill, where any has a role. A replica has a
// place of its own in each, and one live part. O(replicas).
func (v *view) divide() {
	if !slices.ContainsFunc(v.replicas, func(r *policy.Replica) bool { return r.Role != "" }) {
		return
	}
	part := func(without string) *view {
		p := newView(v.router, v.epoch)
		for _, r := range v.replicas {
			if r.Role != without {
				p.add(part.NewReplica(r.Attributes, len(p.replicas), r.Host(), part.OfReplica(r)))
			}
		}
		return p
	}
	v.whole, v.prefill = part(policy.RolePrefill), part(policy.RoleDecode)
}

// those returns the replicas of another view of the fleet as they are in this one, without those that are not.
func (v *view) those(all []*policy.Replica) (in []*policy.Replica) {
	for _, r := range all {
		if own := v.byID(r.ID); own != nil {
			in = append(in, own)
		}
	}
	return in
}

// list fills the lists of those that are connected. O(replicas).
func (v *view) list() {
	if v.prefill == nil {
		v.whole = v
	} else {
		whole, prefill := *v.whole, *v.prefill
		whole.list()
		prefill.list()
		v.whole, v.prefill = &whole, &prefill
	}
	o := &v.router.opts
	v.connected = make([]*policy.Replica, 0, len(v.replicas))
	v.leaving, v.near, v.fewest = nil, [2][]*policy.Replica{}, nil
	for _, r := range v.replicas {
		if !r.Connected() {
			continue
		}
		v.connected = append(v.connected, r)
		if r.Drains() {
			v.leaving = append(v.leaving, r)
		}
		if o.Node != "" && r.Node == o.Node {
			v.near[0] = append(v.near[0], r)
		}
		if o.Zone != "" && r.Zone == o.Zone {
			v.near[1] = append(v.near[1], r)
		}
		if v.loaded != nil {
			v.few(r)
		}
	}
}

func (v *view) Epoch() uint64 { return v.epoch }

func (v *view) Replicas() []*policy.Replica { return v.replicas }

func (v *view) Connected() []*policy.Replica { return v.connected }

func (v *view) ByID(id string) *policy.Replica { return v.byID(id) }

func (v *view) byID(id string) *policy.Replica {
	if at, ok := v.places[id]; ok {
		return v.replicas[at]
	}
	return nil
}

// changed returns this view with the changes of some members, by place, and with more behind them. None of them has a
// role. The cost is that of the changes, and copies of pointers.
func (v *view) changed(at []int, to, more []*policy.Replica) *view {
	next := *v
	next.epoch++
	next.whole = &next
	next.replicas = append(slices.Clone(v.replicas), more...)
	if len(more) > 0 {
		next.places = maps.Clone(v.places)
	}
	adapters, models := make(map[string]bool), false
	for i, place := range at {
		was, is := v.replicas[place], to[i]
		next.replicas[place] = is
		models = models || !slices.Equal(was.Models, is.Models)
		for _, adapter := range slices.Concat(was.Adapters, is.Adapters) {
			adapters[adapter] = true
		}
		if !slices.Equal(was.Adapters, is.Adapters) {
			return v.rebuilt(next.replicas)
		}
	}
	for i, r := range more {
		next.places[r.ID] = len(v.replicas) + i
		models = models || len(r.Models) > 0
		for _, adapter := range r.Adapters {
			adapters[adapter] = true
		}
	}
	if models {
		next.models = make(map[string]bool)
		for _, r := range next.replicas {
			for _, model := range r.Models {
				next.models[model] = true
			}
		}
	}
	next.reload(v, adapters, to, more)
	next.relist(v, to, more)
	return &next
}

// relist makes the lists of a view from those of the view before, if all replicas are connected and the lists do not
// depend on where they run.
func (v *view) relist(old *view, to, more []*policy.Replica) {
	o := &v.router.opts
	if v.listed = len(old.connected) == len(old.replicas) && o.Node == "" && o.Zone == ""; !v.listed {
		return
	}
	v.connected, v.leaving = v.replicas, nil
	for _, r := range old.leaving {
		if now := v.replicas[r.Index()]; now.Drains() {
			v.leaving = append(v.leaving, now)
		}
	}
	for _, r := range slices.Concat(to, more) {
		if at, there := placeIn(v.leaving, r); r.Drains() && !there {
			v.leaving = slices.Insert(v.leaving, at, r)
		}
	}
	switch {
	case v.loaded == nil:
	case old.loaded == nil:
		v.fewest = nil
		for _, r := range v.replicas {
			v.few(r)
		}
	default:
		v.fewest = slices.Clone(old.fewest)
		put(v.fewest, to)
		for _, r := range more {
			v.few(r)
		}
	}
}

// few enters the next replica of the fleet into fewest.
func (v *view) few(r *policy.Replica) {
	switch n := len(r.Adapters); {
	case len(v.fewest) == 0 || n < len(v.fewest[0].Adapters):
		v.fewest = append(v.fewest[:0], r)
	case n == len(v.fewest[0].Adapters):
		v.fewest = append(v.fewest, r)
	}
}

// placeIn returns the place of a replica in a list in the fleet's order, and whether the list has it.
func placeIn(list []*policy.Replica, r *policy.Replica) (at int, there bool) {
	return slices.BinarySearchFunc(list, r.Index(), func(x *policy.Replica, index int) int { return cmp.Compare(x.Index(), index) })
}

// put replaces replicas in a list in the fleet's order by what they are now.
func put(list, now []*policy.Replica) {
	for _, r := range now {
		if at, there := placeIn(list, r); there {
			list[at] = r
		}
	}
}

// rebuilt returns the view that follows this one, of other replicas.
func (v *view) rebuilt(replicas []*policy.Replica) *view {
	next := newView(v.router, v.epoch+1)
	for _, r := range replicas {
		next.add(r)
	}
	return next
}

// reload lists the replicas by adapter again, of those adapters. Since old, no replica has lost one or changed its
// place.
func (v *view) reload(old *view, adapters map[string]bool, to, more []*policy.Replica) {
	if len(adapters) == 0 {
		return
	}
	if v.loaded = maps.Clone(old.loaded); v.loaded == nil {
		v.loaded = make(map[string][]*policy.Replica, len(adapters))
	}
	for adapter := range adapters {
		list := slices.Clone(old.loaded[adapter])
		put(list, to)
		v.loaded[adapter] = list
	}
	for _, r := range more {
		for _, adapter := range r.Adapters {
			v.loaded[adapter] = append(v.loaded[adapter], r)
		}
	}
}

// has reports whether this view has the very replica, which may stem from an older one.
func (v *view) has(r *policy.Replica) bool {
	i := r.Index()
	return i < len(v.replicas) && v.replicas[i] == r
}

// open returns how many replicas are connected and do not drain.
func (v *view) open() int { return len(v.connected) - len(v.leaving) }

func (v *view) Now() time.Time { return v.router.opts.Now() }

func (v *view) IntN(n int) int { return v.router.opts.Rand.IntN(n) }

func (v *view) Lot(q *policy.Request) uint64 {
	s := part.OfRequest(q)
	for s.Lot == 0 {
		s.Lot = v.router.opts.Rand.Uint64()
	}
	return s.Lot
}

func (v *view) Load(r *policy.Replica) float64 {
	s := part.OfReplica(r)
	return v.router.Load.Of(s, s.Book.Load())
}

func (v *view) PeerDrift() float64 {
	return v.router.Load.Drift() / float64(max(len(v.router.view.Load().replicas), 1))
}

func (v *view) Available(q *policy.Request, r *policy.Replica) bool {
	s := part.OfReplica(r)
	return s.Up() && !s.Full() && v.allowed(q, r, s)
}

func (v *view) Allowed(q *policy.Request, r *policy.Replica) bool {
	return v.allowed(q, r, part.OfReplica(r))
}

// allowed is Allowed, given the Router's part of the replica.
func (v *view) allowed(q *policy.Request, r *policy.Replica, rs *state.Replica) bool {
	s := part.OfRequest(q)
	return (rs.Flags.Load()&state.Barred == 0 || s.Resort > state.NoResort && v.resorts(s, rs)) && usable(q, s, r, rs)
}

// usable is Allowed but for the replica's health.
func usable(q *policy.Request, s *state.Request, r *policy.Replica, rs *state.Replica) bool {
	leaves := rs.Flags.Load()&state.Leaving != 0 && s.Resort < state.Leavers
	return (s.Keeper == rs || !r.Draining && !leaves) && !excluded(q, s, r) &&
		(q.Model == "" || s.AnyModel || len(r.Models) == 0 || slices.Contains(r.Models, q.Model)) &&
		(s.Legs == nil || s.Legs.Take(r.Role, r.Pair))
}

// coming reports whether a replica that may serve the request is being connected for the first time.
func (v *view) coming(q *policy.Request) bool {
	return slices.ContainsFunc(v.replicas, func(r *policy.Replica) bool {
		s := part.OfReplica(r)
		return s.Flags.Load()&state.Coming != 0 && v.allowed(q, r, s)
	})
}

// resorts reports whether the request takes a replica all the same that is barred.
func (v *view) resorts(s *state.Request, rs *state.Replica) bool {
	health, _ := v.router.outliers.State(rs.Owner.(*live).outlier)
	return health == outlier.SlowStart || s.Resort == state.Ejected
}

// excluded reports whether the request itself rules the replica out.
func excluded(q *policy.Request, s *state.Request, r *policy.Replica) bool {
	return len(q.Exclude)+len(q.Allow) > 0 && s.Excludes(q.Exclude, q.Allow, r.ID)
}

// anyModel reports whether the request's model filters nothing, because no replica
// of the fleet declares it.
func (v *view) anyModel(q *policy.Request) bool { return q.Model != "" && !v.models[q.Model] }

// SplitModel takes the model "base:adapter" of a request apart, unless a replica declares the whole as a model. Of two
// adapters the one behind the model counts, as in SGLang.
func (r *Router) SplitModel(q *policy.Request) {
	base, adapter, joined := strings.Cut(q.Model, ":")
	if joined && !r.view.Load().models[q.Model] {
		q.Model, q.Adapter = base, adapter
	}
}

func (v *view) Pool(q *policy.Request, i int) (policy.Pool, bool) {
	first := v.near
	if q.Adapter != "" && v.loaded != nil {
		first = [2][]*policy.Replica{v.loaded[q.Adapter], v.fewest}
	}
	var pools [3][]*policy.Replica
	n := 0
	for _, p := range first {
		if len(p) > 0 {
			pools[n] = p
			n++
		}
	}
	pools[n] = v.connected
	n++
	retry := len(part.OfRequest(q).Tried) > 0
	if i >= n && !(retry && i < 2*n) {
		return policy.Pool{}, false
	}
	return policy.Pool{Replicas: pools[i%n], Whole: i%n == n-1, Untried: retry && i < n, View: v, Request: q}, true
}

func (v *view) LeastLoaded(q *policy.Request) *policy.Replica { return v.search(q, leastOfPool) }

func (v *view) LeastOfTwo(q *policy.Request) *policy.Replica { return v.search(q, twoOfPool) }

// search returns what is found in the first pool in which anything is, or nil.
func (v *view) search(q *policy.Request, find func(*view, policy.Pool) *policy.Replica) *policy.Replica {
	for i := 0; ; i++ {
		p, ok := v.Pool(q, i)
		if !ok {
			return nil
		}
		if r := find(v, p); r != nil {
			return r
		}
	}
}

// takes is p.Takes.
func (v *view) takes(p *policy.Pool, r *policy.Replica) bool {
	return v.Available(p.Request, r) && !(p.Untried && p.Request.Tried(r))
}

func leastOfPool(v *view, p policy.Pool) (best *policy.Replica) {
	var least float64
	for _, r := range p.Replicas {
		if !v.takes(&p, r) {
			continue
		}
		if l := v.Load(r); best == nil || l < least {
			best, least = r, l
		}
	}
	return best
}

// draws is how often twoOfPool draws from a pool before it scans it.
const draws = 8

// twoOfPool draws two of those the pool takes. Where few draws find none, it draws in one pass over all (reservoir
// sampling). For one request it draws the same each time, so that load which is asked for between two choices decides
// between the same two.
func twoOfPool(v *view, p policy.Pool) *policy.Replica {
	n := len(p.Replicas)
	var two [2]*policy.Replica
	var lot rand.PCG
	lot.Seed(v.Lot(p.Request), 0)
	intN := func(n int) int { return int(lot.Uint64() >> 32 * uint64(n) >> 32) }
	for i := 0; n > 2 && i < draws; i++ {
		r := p.Replicas[intN(n)]
		switch {
		case r == two[0] || !v.takes(&p, r):
		case two[0] == nil:
			two[0] = r
		default:
			return fewerOngoing(two[0], r)
		}
	}
	two = [2]*policy.Replica{}
	found := 0
	for _, r := range p.Replicas {
		if !v.takes(&p, r) {
			continue
		}
		at := found
		if found++; found > 2 {
			at = intN(found)
		}
		if at < 2 {
			two[at] = r
		}
	}
	switch {
	case found < 2:
		return two[0]
	case intN(2) == 1:
		return fewerOngoing(two[1], two[0])
	}
	return fewerOngoing(two[0], two[1])
}

// fewerOngoing returns the replica with fewer requests under way, and of equals the first. A replica whose last calls
// failed is never the one with fewer: calls that fail at once make it look idle.
func fewerOngoing(first, second *policy.Replica) *policy.Replica {
	if s := part.OfReplica(second); s.UnderWay() < part.OfReplica(first).UnderWay() && !s.Suspect.Load() {
		return second
	}
	return first
}
