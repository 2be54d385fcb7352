package routing

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/internal/outlier"
)

// A View is an immutable snapshot of the whole fleet in a stable order, with a
// compact list of the replicas that are connected. What a Replica reports of
// itself is live.
type View struct {
	fleet     *membership
	connected []*Replica
	leaving   []*Replica    // connected and draining
	near      [2][]*Replica // connected, on our node; connected, in our zone
	fewest    []*Replica    // connected, with the fewest adapters loaded; nil where the fleet has none
	shared    *shared
}

// membership is what a change of connectivity leaves as it is.
type membership struct {
	epoch    uint64
	replicas []*Replica
	byID     map[string]*Replica
	models   map[string]bool       // declared by at least one replica
	loaded   map[string][]*Replica // by adapter, connected or not; nil where no replica declares adapters
}

// shared is what all Views of a Router have in common.
type shared struct {
	requestCost float64
	rand        *rand.Rand // guarded by the Router's mutex
	now         func() time.Time

	// foreignSum is what others are known to have on all replicas, at rate 1, in tokens.
	foreignSum atomic.Int64

	outliers *outlier.Detector

	// slow is what keeps picks from being quick; see quick.go.
	slow atomic.Uint32
}

// Epoch numbers the membership: it grows when replicas or their attributes
// change, and not when a connection comes or goes.
func (v *View) Epoch() uint64 { return v.fleet.epoch }

// Replicas returns the whole fleet in its stable order. Read only.
func (v *View) Replicas() []*Replica { return v.fleet.replicas }

// Connected returns the connected replicas in the same order. Read only.
func (v *View) Connected() []*Replica { return v.connected }

// ByID returns the replica with the id, or nil.
func (v *View) ByID(id string) *Replica { return v.fleet.byID[id] }

// current returns what this View has for a replica that may stem from an older
// one: r itself as a rule, nil when it has left.
func (v *View) current(r *Replica) *Replica {
	if r.index < len(v.fleet.replicas) && v.fleet.replicas[r.index] == r {
		return r
	}
	return v.fleet.byID[r.ID]
}

// Now returns the Router's time.
func (v *View) Now() time.Time { return v.shared.now() }

// open returns how many replicas are connected and do not drain.
func (v *View) open() int { return len(v.connected) - len(v.leaving) }

// IntN returns a random number in [0,n) from the Router's source. Choose only.
func (v *View) IntN(n int) int { return v.shared.rand.IntN(n) }

// Lot returns a random number that stays with the request, for a policy that finds no key in it. Choose only.
func (v *View) Lot(q *Request) uint64 {
	for q.lot == 0 {
		q.lot = v.shared.rand.Uint64()
	}
	return q.lot
}

// Load returns the load of a replica in tokens: uncached prompt tokens booked
// and not yet prefilled, plus the request cost per booking, divided by its rate.
// Bookings of others count as far as [Router.SetForeignLoad] told of them.
func (v *View) Load(r *Replica) float64 {
	return v.shared.load(r.live, r.live.book.Load())
}

func (s *shared) load(l *live, book int64) float64 {
	book += l.foreign.Load()
	return (float64(book&tokenMask) + s.requestCost*float64(book>>tokenBits)) * math.Float64frombits(l.invRate.Load())
}

// Available reports whether the replica may be given the request now: it is
// connected, has room, is neither ejected nor draining, and the request may use it.
func (v *View) Available(q *Request, r *Replica) bool {
	return r.live.state.Load()&(connectedBit|barred) == connectedBit && !r.Full() && v.usable(q, r)
}

// Allowed reports whether the request may use the replica, whether or not it is
// connected and has room: it is neither ejected nor draining, not excluded, and serves
// the model. A draining replica keeps, for a time, the sessions that it has.
// It tells a policy that walks an rendezvous order apart whom it may wait for.
func (v *View) Allowed(q *Request, r *Replica) bool { return v.allowed(q, r) }

// allowed is the part of availability that waiting cannot change.
func (v *View) allowed(q *Request, r *Replica) bool {
	return r.live.state.Load()&barred == 0 && v.usable(q, r)
}

func (v *View) usable(q *Request, r *Replica) bool {
	if q.keeper != r && (r.Draining || !q.lastResort && r.leaves()) || q.excluded(r) {
		return false
	}
	if q.Principal != "" && !q.lastResort && v.shared.outliers.Accuser(r.live.outlier) == q.Principal {
		return false
	}
	return q.Model == "" || q.anyModel || r.serves(q.Model)
}

// anyModel reports whether the request's model filters nothing, because nobody
// in the fleet declares it.
func (v *View) anyModel(q *Request) bool {
	return q.Model != "" && !v.fleet.models[q.Model]
}

// A Pool is a group of replicas in which to look for one. Those that are not connected are not available.
type Pool struct {
	Replicas []*Replica
	Whole    bool // Replicas are all that are connected
	view     *View
	request  *Request
	untried  bool
}

// Takes reports whether the replica is available and wanted in this pool.
func (p Pool) Takes(r *Replica) bool {
	return p.view.Available(p.request, r) && !(p.untried && p.request.Tried(r))
}

// Pool returns the i-th group of replicas to look in, most preferred first, and
// false after the last. Groups come by adapter (those that have it loaded, those
// with the fewest adapters, all) or else by locality (our node, our zone, all);
// after a failed attempt first without the replicas tried, then with them. The
// last group holds every connected replica.
func (v *View) Pool(q *Request, i int) (Pool, bool) {
	tiers, n := v.tiers(q)
	retry := len(q.tried) > 0
	if i >= n && (!retry || i >= 2*n) {
		return Pool{}, false
	}
	return Pool{Replicas: tiers[i%n], Whole: i%n == n-1, view: v, request: q, untried: retry && i < n}, true
}

func (v *View) tiers(q *Request) (t [3][]*Replica, n int) {
	add := func(rs []*Replica) {
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

// build fills the lists that depend on which replicas are connected. O(replicas).
func (v *View) build(o *Options) {
	for _, r := range v.fleet.replicas {
		if r.Connected() {
			v.each(r, o, func(list *[]*Replica) { *list = append(*list, r) })
		}
	}
	v.countAdapters()
}

// changed returns the View after a replica's connection came up or went down, whose lists differ by this replica.
func (v *View) changed(r *Replica, up bool, o *Options) *View {
	next := *v
	next.each(r, o, func(list *[]*Replica) { *list = edited(*list, r, up) })
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
func (v *View) each(r *Replica, o *Options, do func(list *[]*Replica)) {
	do(&v.connected)
	if r.drains() {
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
func (v *View) countAdapters() {
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
func edited(list []*Replica, r *Replica, with bool) []*Replica {
	at, found := slices.BinarySearchFunc(list, r.index, func(o *Replica, index int) int { return o.index - index })
	switch {
	case found == with:
		return list
	case with:
		return slices.Insert(slices.Clip(list), at, r)
	}
	return append(slices.Clone(list[:at]), list[at+1:]...)
}

// LeastLoaded returns the available replica with the least load in the first
// pool that has one, or nil. Ties go to the first in the fleet's order. O(replicas).
func (v *View) LeastLoaded(q *Request) *Replica {
	for i := 0; ; i++ {
		p, ok := v.Pool(q, i)
		if !ok {
			return nil
		}
		var best *Replica
		var least float64
		for _, r := range p.Replicas {
			if !p.Takes(r) {
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
