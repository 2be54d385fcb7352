package server

import (
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
)

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
	var peers []router.PeerLoad
	set := func(rep *policy.Replica, load replicaLoad) {
		if n, tokens := rep.PeerLoad(); int64(n) != load.ongoing || tokens != load.tokens {
			peers = append(peers, router.PeerLoad{ID: rep.ID, Ongoing: int(load.ongoing), QueuedTokens: load.tokens})
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
	rt.SetPeerLoad(peers)
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
