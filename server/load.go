package server

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	routerload "github.com/warmpath/warmpath/internal/router/load"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A record is what a deployment has of a replica while it is a member, whatever changes in its description. It is used
// with the deployment's mutex held.
type record struct {
	own      replicaLoad // of the picks made here, as of the last interval
	reported replicaLoad // sum of the clients' reports
	health   healthChecks
	polled   ownLoad // by load polls; it expires
	// pollProblem is why the last poll had no answer; "" = it had one.
	pollProblem string
	kvTokens    int // of its cache, by load polls; 0 = not known
	shown       [2]shownLoad
	ejection    *ejection // nil = the replica is healthy
}

// shownLoad is the load that watchers are sent, and the tick that changed it last.
type shownLoad struct {
	replicaLoad
	tick uint64
}

// The two ways in which load is shown. In the second each prompt picked here counts whole, since its uncached part, as
// the Router counts it, would reveal what is cached.
const (
	exactView = iota
	uncachedView
)

// view is how a principal is shown the load.
func (p *principal) view() int {
	if p.trusted() {
		return exactView
	}
	return uncachedView
}

func appendLoad(to *warmpathv1.Loads, number uint32, b replicaLoad) {
	to.Replicas = append(to.Replicas, number)
	ongoing, tokens := b.shown()
	to.Ongoing, to.QueuedTokens = append(to.Ongoing, ongoing), append(to.QueuedTokens, tokens)
}

// A replicaLoad is the load of one replica: calls under way, and prompt tokens not yet prefilled.
type replicaLoad struct{ ongoing, tokens int64 }

func (b *replicaLoad) add(o replicaLoad, sign int64) {
	b.ongoing += sign * o.ongoing
	b.tokens += sign * o.tokens
}

// put enters a value, of which zero is no entry.
func put[K, V comparable](m map[K]V, k K, v V) {
	var zero V
	if m[k] = v; v == zero {
		delete(m, k)
	}
}

// shown returns the load as messages have it.
func (b replicaLoad) shown() (ongoing uint32, tokens uint64) {
	return uint32(min(max(b.ongoing, 0), math.MaxUint32)), uint64(max(b.tokens, 0))
}

// Bounds of one line of a report: the sum of many clients does not overflow.
const (
	maxOngoing = 1 << 20
	maxTokens  = 1 << 38
)

// ledger adds up the reports of watching clients. It is used with the deployment's mutex held.
type ledger struct {
	roster  *roster // the sum is in its members
	clients map[string]*client
}

// A client is one that watches, or did until a moment ago.
type client struct {
	id        string
	principal *principal
	lines     map[uint32]replicaLoad // its reported load, by number of the replica
	last      uint64                 // number of its last report
	counted   uint64                 // number of the last report in the load in force
	at        time.Time              // of its last report
	ended     bool                   // its watch has ended
}

// open begins an account of a principal's client. An earlier one of the same name is dropped.
func (l *ledger) open(id string, p *principal, now time.Time) *client {
	if l.clients == nil {
		l.clients = make(map[string]*client)
	}
	if old := l.clients[id]; old != nil {
		l.drop(old)
	}
	c := &client{id: id, principal: p, lines: make(map[uint32]replicaLoad), at: now}
	l.clients[id] = c
	return c
}

// empty reports whether no watching client has reported yet.
func (l *ledger) empty() bool {
	for _, c := range l.clients {
		if c.last > 0 && !c.ended {
			return false
		}
	}
	return true
}

// take enters a report. Replicas that have left are passed over.
func (l *ledger) take(c *client, r *warmpathv1.ReservationReport, now time.Time) {
	if l.clients[c.id] != c {
		return // another watch took its place
	}
	c.at = now
	c.last = r.GetNumber()
	if r.GetComplete() {
		l.clear(c)
	}
	ongoing, tokens := r.GetLoads().GetOngoing(), r.GetLoads().GetQueuedTokens()
	for i, number := range r.GetLoads().GetReplicas() {
		l.enter(c, number, replicaLoad{int64(min(ongoing[i], maxOngoing)), int64(min(tokens[i], maxTokens))})
	}
	if len(c.lines) > len(l.roster.order) {
		maps.DeleteFunc(c.lines, func(number uint32, _ replicaLoad) bool { return !l.roster.has(number) })
	}
}

func (l *ledger) enter(c *client, number uint32, now replicaLoad) {
	if m := l.roster.numbered(number); m != nil {
		m.reported.add(c.lines[number], -1)
		m.reported.add(now, 1)
	} else {
		now = replicaLoad{}
	}
	put(c.lines, number, now)
}

func (l *ledger) clear(c *client) {
	for number := range c.lines {
		l.enter(c, number, replicaLoad{})
	}
}

// drop closes a client's account, if it is open.
func (l *ledger) drop(c *client) {
	if l.clients[c.id] != c {
		return
	}
	l.clear(c)
	delete(l.clients, c.id)
	c.principal.accounts.Add(-1)
}

// close closes all accounts.
func (l *ledger) close() {
	for _, c := range l.clients {
		l.drop(c)
	}
}

// count marks all reports as counted in the load in force. A client that is silent for staleAfter makes the load of
// its replicas stale, or is dropped if its watch has ended; the load of one that is silent for a lease is dropped. It
// returns the numbers of the replicas with stale load.
func (l *ledger) count(now time.Time) (stale map[uint32]bool) {
	stale = make(map[uint32]bool)
	for _, c := range l.clients {
		c.counted = c.last
		silent := now.Sub(c.at)
		switch {
		case c.ended && silent >= staleAfter:
			l.drop(c)
		case silent >= maxLease:
			l.clear(c)
		case silent >= staleAfter:
			for number := range c.lines {
				stale[number] = true
			}
		}
	}
	return stale
}

// balance is the load of a deployment, from the reports of watching clients, the picks made here, and the replicas'
// own reports. It is used with the deployment's mutex held.
type balance struct {
	sources *sources
	ledger  ledger
	peers   *peers

	// The load as of the last interval; that of each replica is in its record.
	interval  uint64 // its number
	at        time.Time
	latest    [2]*warmpathv1.Loads // what it changed, by view; never written again
	stale     []uint32             // numbers of replicas whose load rests on old reports
	staleTick uint64               // the interval in which stale changed last
	settles   time.Time            // when the first clients of this server have reported; see unsettled
}

// unsettle begins the interval in which the clients of another server, or of this one before a restart, connect: their
// load is not reported yet.
func (b *balance) unsettle(interval time.Duration, now time.Time) {
	b.settles = now.Add(interval)
	var stale []uint32
	for _, m := range b.ledger.roster.order {
		if b.unsettled(m, now) {
			stale = append(stale, m.number)
		}
	}
	b.mark(stale, b.interval+1) // watchers that have this interval receive it with the next
}

// unsettled reports whether the load of a replica is not known yet, and the replica does not report it, or has
// stopped.
func (b *balance) unsettled(m *member, now time.Time) bool {
	return now.Before(b.settles) && now.Sub(b.sources.loadOf(m).at) >= staleAfter
}

// mark sets the replicas whose load is stale as of an interval.
func (b *balance) mark(stale []uint32, interval uint64) {
	if !slices.Equal(stale, b.stale) {
		b.stale, b.staleTick = stale, interval
	}
}

// tick adds up the load at the end of an interval, and gives the Router its peer load.
func (b *balance) tick(rt *router.Router, leased map[uint32]replicaLoad, now time.Time) {
	b.interval++
	b.at, b.latest = now, [2]*warmpathv1.Loads{new(warmpathv1.Loads), new(warmpathv1.Loads)}
	old, view := b.ledger.count(now), rt.View()
	var peers []routerload.Peer
	set := func(rep *policy.Replica, load replicaLoad) {
		if n, tokens := rep.PeerLoad(); int64(n) != load.ongoing || tokens != load.tokens {
			peers = append(peers, routerload.Peer{ID: rep.ID, Ongoing: int(load.ongoing), QueuedTokens: load.tokens})
		}
	}
	var stale []uint32
	var unknown []*member
	var known replicaLoad // peer load of the rest
	damped := b.peers.damped(b.ledger.roster.order)
	for i, m := range b.ledger.roster.order {
		rep := view.ByID(m.ID)
		m.own = replicaLoad{int64(rep.Ongoing()), int64(rep.QueuedTokens())}
		total, fresh := b.totalOf(m, m.own, now)
		b.show(m, exactView, total)
		whole := leased[m.number]
		whole.tokens += b.peers.total[m.ID].cached
		hidden, _ := b.totalOf(m, whole, now)
		b.show(m, uncachedView, hidden)
		unsettled := b.unsettled(m, now)
		if old[m.number] || !fresh || unsettled {
			stale = append(stale, m.number)
		}
		if unsettled {
			unknown = append(unknown, m)
			continue
		}
		total.add(m.own, -1)
		if damped != nil {
			l := damped[i]
			total.add(b.peers.total[m.ID].replicaLoad, -1)
			total.add(replicaLoad{int64(l.Ongoing), l.QueuedTokens}, 1)
		}
		known.add(total, 1)
		set(rep, total)
	}
	n := int64(max(len(b.ledger.roster.order)-len(unknown), 1))
	for _, m := range unknown { // counts as loaded as the mean of the rest, not as idle
		set(view.ByID(m.ID), replicaLoad{
			max(known.ongoing/n, m.reported.ongoing), max(known.tokens/n, m.reported.tokens),
		})
	}
	b.mark(stale, b.interval)
	if damped != nil {
		rt.Load.SetDrift(b.peers.damping.Drift())
	}
	rt.Load.SetPeers(peers)
}

// show puts the load of a replica into a view.
func (b *balance) show(m *member, view int, load replicaLoad) {
	if m.shown[view].replicaLoad != load {
		m.shown[view] = shownLoad{load, b.interval}
		appendLoad(b.latest[view], m.number, load)
	}
}

// totalOf is the load of a replica; own is the part picked here. It is not fresh where the replica has stopped to
// report.
func (b *balance) totalOf(m *member, own replicaLoad, now time.Time) (total replicaLoad, fresh bool) {
	total = own
	total.add(m.reported, 1)
	total.add(b.peers.total[m.ID].replicaLoad, 1)
	load := b.sources.loadOf(m)
	if load.at.IsZero() {
		return total, true
	}
	if now.Sub(load.at) >= staleAfter {
		return total, false
	}
	return replicaLoad{max(total.ongoing, load.ongoing), max(total.tokens, load.tokens)}, true
}

// since returns what changed in a view after an interval; after 0, everything.
func (b *balance) since(view int, interval uint64) *warmpathv1.LoadUpdate {
	u := &warmpathv1.LoadUpdate{Snapshot: interval == 0, Loads: b.latest[view]}
	if interval == 0 || interval+1 != b.interval {
		u.Loads = new(warmpathv1.Loads)
		for _, m := range b.ledger.roster.order {
			if x := m.shown[view]; x.tick > interval && (interval != 0 || x.replicaLoad != replicaLoad{}) {
				appendLoad(u.Loads, m.number, x.replicaLoad)
			}
		}
	}
	if u.StaleSet = interval == 0 || b.staleTick > interval; u.StaleSet {
		u.Stale = b.stale
	}
	return u
}
