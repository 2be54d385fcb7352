package server

import (
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	routerload "github.com/warmpath/warmpath/internal/router/load"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// loads is the load that watchers are sent, as of the last interval. It is used with the deployment's mutex held.
type loads struct {
	tick  uint64
	at    time.Time // of the tick
	lines map[uint32]line

	stale     []uint32
	staleTick uint64 // when stale changed last

	latest *warmpathv1.Loads // changes of this tick; never written again
}

// A line is the load of one replica, and the tick that changed it last.
type line struct {
	replicaLoad
	tick uint64
}

// update puts the load of the fleet into force.
func (l *loads) update(order []*member, total func(*member) replicaLoad, now time.Time) {
	if l.lines == nil {
		l.lines = make(map[uint32]line)
	}
	l.tick++
	l.at = now
	l.latest = new(warmpathv1.Loads)
	for _, m := range order {
		b := total(m)
		if was := l.lines[m.number]; was.replicaLoad == b {
			continue
		}
		l.lines[m.number] = line{b, l.tick}
		appendLoad(l.latest, m.number, b)
	}
}

// mark sets the replicas whose load is stale as of a tick.
func (l *loads) mark(stale []uint32, tick uint64) {
	if !slices.Equal(stale, l.stale) {
		l.stale, l.staleTick = stale, tick
	}
}

// forget removes replicas that have left: numbers are not used again.
func (l *loads) forget(known func(uint32) bool) {
	maps.DeleteFunc(l.lines, func(number uint32, _ line) bool { return !known(number) })
}

// since returns the changes after a tick; after 0, everything.
func (l *loads) since(tick uint64) *warmpathv1.LoadUpdate {
	u := &warmpathv1.LoadUpdate{Snapshot: tick == 0}
	switch {
	case tick != 0 && tick+1 == l.tick:
		u.Loads = l.latest
	default:
		u.Loads = new(warmpathv1.Loads)
		for _, number := range slices.Sorted(maps.Keys(l.lines)) {
			if x := l.lines[number]; x.tick > tick && (tick != 0 || x.replicaLoad != replicaLoad{}) {
				appendLoad(u.Loads, number, x.replicaLoad)
			}
		}
	}
	if u.StaleSet = tick == 0 || l.staleTick > tick; u.StaleSet {
		u.Stale = l.stale
	}
	return u
}

func appendLoad(to *warmpathv1.Loads, number uint32, b replicaLoad) {
	to.Replicas = append(to.Replicas, number)
	to.Ongoing = append(to.Ongoing, uint32(max(b.ongoing, 0)))
	to.QueuedTokens = append(to.QueuedTokens, uint64(max(b.tokens, 0)))
}

// A replicaLoad is the load of one replica: calls under way, and prompt tokens not yet prefilled.
type replicaLoad struct{ ongoing, tokens int64 }

func (b *replicaLoad) add(o replicaLoad, sign int64) {
	b.ongoing += sign * o.ongoing
	b.tokens += sign * o.tokens
}

// Bounds of one line of a report: the sum of many clients does not overflow.
const (
	maxOngoing = 1 << 20
	maxTokens  = 1 << 38
)

// ledger adds up the reports of watching clients. It is used with the deployment's mutex held.
type ledger struct {
	clients map[string]*client
	total   map[uint32]replicaLoad // by number of the replica
}

// A client is one that watches, or did until a moment ago.
type client struct {
	id        string
	principal string                 // of its evidence in outlier detection
	lines     map[uint32]replicaLoad // its reported load, by number of the replica
	last      uint64                 // number of its last report
	counted   uint64                 // number of the last report in the load in force
	at        time.Time              // of its last report
	ended     bool                   // its watch has ended
	dropped   func()                 // called once when the account is closed; nil = nothing
}

// open begins a client's account. An earlier one of the same name is dropped.
func (l *ledger) open(id string, now time.Time) *client {
	if l.clients == nil {
		l.clients, l.total = make(map[string]*client), make(map[uint32]replicaLoad)
	}
	if old := l.clients[id]; old != nil {
		l.drop(old)
	}
	c := &client{id: id, lines: make(map[uint32]replicaLoad), at: now}
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

// take enters a report. Replicas that are not known have left, and are passed over.
func (l *ledger) take(c *client, r *warmpathv1.BookingReport, known func(uint32) bool, now time.Time) {
	if l.clients[c.id] != c {
		return // another watch took its place
	}
	c.at = now
	c.last = r.GetNumber()
	if r.GetComplete() {
		l.clear(c)
	}
	replicas, ongoing, tokens := r.GetLoads().GetReplicas(), r.GetLoads().GetOngoing(), r.GetLoads().GetQueuedTokens()
	for i, number := range replicas {
		if known(number) {
			l.enter(c, number, replicaLoad{int64(min(ongoing[i], maxOngoing)), int64(min(tokens[i], maxTokens))})
		}
	}
}

func (l *ledger) enter(c *client, number uint32, now replicaLoad) {
	sum := l.total[number]
	sum.add(c.lines[number], -1)
	sum.add(now, 1)
	if sum == (replicaLoad{}) {
		delete(l.total, number)
	} else {
		l.total[number] = sum
	}
	if now == (replicaLoad{}) {
		delete(c.lines, number)
	} else {
		c.lines[number] = now
	}
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
	if c.dropped != nil {
		c.dropped()
	}
}

// close closes all accounts.
func (l *ledger) close() {
	for _, c := range l.clients {
		l.drop(c)
	}
}

// forget removes replicas that have left.
func (l *ledger) forget(known func(uint32) bool) {
	for number := range l.total {
		if !known(number) {
			delete(l.total, number)
			for _, c := range l.clients {
				delete(c.lines, number)
			}
		}
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
	limits  *atomic.Pointer[Config]
	picks   *picks
	sources *sources

	ledger  ledger
	loads   loads
	shown   loads     // the same for principals that are not trusted; kept while the config has principals
	settles time.Time // when the first clients of this server have reported; see unsettled
}

// forget removes replicas that have left.
func (b *balance) forget(member func(uint32) bool) {
	b.ledger.forget(member)
	b.loads.forget(member)
	b.shown.forget(member)
}

// unsettle begins the interval in which the clients of another server, or of this one before a restart, connect: their
// load is not reported yet.
func (b *balance) unsettle(order []*member, now time.Time) {
	b.settles = now.Add(time.Duration(b.limits.Load().LoadInterval))
	var stale []uint32
	for _, m := range order {
		if b.unsettled(m, now) {
			stale = append(stale, m.number)
		}
	}
	b.loads.mark(stale, b.loads.tick+1) // watchers that have this tick receive it with the next
	b.shown.mark(stale, b.shown.tick+1)
}

// unsettled reports whether the load of a replica is not known yet, and the replica does not report it, or has
// stopped.
func (b *balance) unsettled(m *member, now time.Time) bool {
	if !now.Before(b.settles) {
		return false
	}
	return now.Sub(b.sources.loadOf(m.ID).at) >= staleAfter
}

// tick adds up the load at the end of an interval, and gives the Router its peer load.
func (b *balance) tick(order []*member, rt *router.Router, now time.Time) {
	limits := b.limits.Load()
	stale := b.ledger.count(now)
	view := rt.View()
	var peers []routerload.Peer
	set := func(rep *policy.Replica, load replicaLoad) {
		if n, tokens := rep.PeerLoad(); int64(n) != load.ongoing || tokens != load.tokens {
			peers = append(peers, routerload.Peer{ID: rep.ID, Ongoing: int(load.ongoing), QueuedTokens: load.tokens})
		}
	}
	var unknown []*member
	var known replicaLoad // peer load of the rest
	b.loads.update(order, func(m *member) replicaLoad {
		rep := view.ByID(m.ID)
		own := replicaLoad{int64(rep.Ongoing()), int64(rep.QueuedTokens())}
		total, fresh := b.totalOf(m, own, now)
		if !fresh {
			stale[m.number] = true
		}
		if b.unsettled(m, now) {
			stale[m.number] = true
			unknown = append(unknown, m)
			return total
		}
		others := total
		others.add(own, -1)
		known.add(others, 1)
		set(rep, others)
		return total
	}, now)
	n := int64(max(len(order)-len(unknown), 1))
	for _, m := range unknown { // counts as loaded as the mean of the rest, not as idle
		reported := b.ledger.total[m.number]
		set(view.ByID(m.ID), replicaLoad{max(known.ongoing/n, reported.ongoing), max(known.tokens/n, reported.tokens)})
	}
	unsure := slices.Sorted(maps.Keys(stale))
	b.loads.mark(unsure, b.loads.tick)
	if len(limits.Principals) > 0 {
		b.show(order, unsure, now)
	}
	rt.Load.SetPeers(peers)
}

// show updates the load that principals without trust see: each prompt picked here counts whole, since its uncached
// part, as the Router counts it, would reveal what is cached.
func (b *balance) show(order []*member, stale []uint32, now time.Time) {
	own := b.picks.leases.uncached()
	b.shown.update(order, func(m *member) replicaLoad {
		total, _ := b.totalOf(m, own[m.number], now)
		return total
	}, now)
	b.shown.mark(stale, b.shown.tick)
}

// of is the load as a principal may see it.
func (b *balance) of(p *principal) *loads {
	if p.trusted() {
		return &b.loads
	}
	return &b.shown
}

// totalOf is the load of a replica; own is the part picked here. It is not fresh where the replica has stopped to
// report.
func (b *balance) totalOf(m *member, own replicaLoad, now time.Time) (total replicaLoad, fresh bool) {
	total = own
	total.add(b.ledger.total[m.number], 1)
	load := b.sources.loadOf(m.ID)
	if load.at.IsZero() {
		return total, true
	}
	if now.Sub(load.at) >= staleAfter {
		return total, false
	}
	return replicaLoad{max(total.ongoing, load.ongoing), max(total.tokens, load.tokens)}, true
}
