package server

import (
	"maps"
	"slices"
	"time"

	"github.com/warmpath/warmpath/balancer/routing"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// loads is the load that is told, as of the last interval. It is used with the deployment's mutex held.
type loads struct {
	tick  uint64
	at    time.Time // of the tick
	lines map[uint32]line

	stale     []uint32
	staleTick uint64 // when stale changed last

	latest *warmpathv1.Loads // what this tick changed; never written again
}

// A line is the load of one replica, and the tick that changed it last.
type line struct {
	book
	tick uint64
}

// update puts the load of the fleet into force.
func (l *loads) update(order []*member, total func(*member) book, now time.Time) {
	if l.lines == nil {
		l.lines = make(map[uint32]line)
	}
	l.tick++
	l.at = now
	l.latest = new(warmpathv1.Loads)
	for _, m := range order {
		b := total(m)
		if was := l.lines[m.number]; was.book == b {
			continue
		}
		l.lines[m.number] = line{b, l.tick}
		appendLoad(l.latest, m.number, b)
	}
}

// mark says whose load is stale as of a tick.
func (l *loads) mark(stale []uint32, tick uint64) {
	if !slices.Equal(stale, l.stale) {
		l.stale, l.staleTick = stale, tick
	}
}

// forget strikes out who has left: numbers are not used again.
func (l *loads) forget(known func(uint32) bool) {
	maps.DeleteFunc(l.lines, func(number uint32, _ line) bool { return !known(number) })
}

// since returns what has changed after a tick; after 0, everything.
func (l *loads) since(tick uint64) *warmpathv1.LoadUpdate {
	u := &warmpathv1.LoadUpdate{Snapshot: tick == 0}
	switch {
	case tick != 0 && tick+1 == l.tick:
		u.Loads = l.latest
	default:
		u.Loads = new(warmpathv1.Loads)
		for _, number := range slices.Sorted(maps.Keys(l.lines)) {
			if x := l.lines[number]; x.tick > tick && (tick != 0 || x.book != book{}) {
				appendLoad(u.Loads, number, x.book)
			}
		}
	}
	if u.StaleSet = tick == 0 || l.staleTick > tick; u.StaleSet {
		u.Stale = l.stale
	}
	return u
}

func appendLoad(to *warmpathv1.Loads, number uint32, b book) {
	to.Replicas = append(to.Replicas, number)
	to.Ongoing = append(to.Ongoing, uint32(max(b.ongoing, 0)))
	to.QueuedTokens = append(to.QueuedTokens, uint64(max(b.tokens, 0)))
}

// unsettle begins the interval in which clients come over that another server has known until now, or this one before it
// was restarted: what they have booked is not known yet. Called with mu held.
func (d *deployment) unsettle() {
	now := d.now()
	d.settles = now.Add(time.Duration(d.limits.Load().LoadInterval))
	var stale []uint32
	for _, m := range d.roster.order {
		if d.unsettled(m, now) {
			stale = append(stale, m.number)
		}
	}
	d.loads.mark(stale, d.loads.tick+1) // those who know of this tick are told at the next
	d.shown.mark(stale, d.shown.tick+1)
}

// unsettled reports whether nobody can know the load of a replica yet: it does not tell of it itself, or has stopped to. Called
// with mu held.
func (d *deployment) unsettled(m *member, now time.Time) bool {
	if !now.Before(d.settles) {
		return false
	}
	_, heard, tells := d.reportedBy(m.ID)
	return !tells || now.Sub(heard) >= time.Duration(d.limits.Load().StaleAfter)
}

// tick is the end of an interval: what has expired is let go, load is added up, told to the Router, and to the watchers.
func (d *deployment) tick(now time.Time) {
	d.picks.leases.expire(now)
	d.mu.Lock()
	defer d.mu.Unlock()
	expired, stirred := d.sources.expire(now)
	d.tally.registrationsExpired.Add(expired)
	if stirred {
		d.refleet()
	}
	limits := d.limits.Load()
	stale := d.ledger.count(now, time.Duration(limits.StaleAfter), time.Duration(limits.Lease))
	router := d.hosted.Load().router
	view := router.View()
	var foreign []routing.ForeignLoad
	tell := func(rep *routing.Replica, b book) {
		if n, tokens := rep.Foreign(); int64(n) != b.ongoing || tokens != b.tokens {
			foreign = append(foreign, routing.ForeignLoad{ID: rep.ID, Ongoing: int(b.ongoing), QueuedTokens: b.tokens})
		}
	}
	var unknown []*member
	var known book // of others, on the rest
	d.loads.update(d.roster.order, func(m *member) book {
		rep := view.ByID(m.ID)
		own := book{int64(rep.Ongoing()), int64(rep.QueuedTokens())}
		total, fresh := d.totalOf(m, own, now)
		if !fresh {
			stale[m.number] = true
		}
		if d.unsettled(m, now) {
			stale[m.number] = true
			unknown = append(unknown, m)
			return total
		}
		others := total
		others.add(own, -1)
		known.add(others, 1)
		tell(rep, others)
		return total
	}, now)
	n := int64(max(len(d.roster.order)-len(unknown), 1))
	for _, m := range unknown { // as loaded as the rest is: not idle
		reported := d.ledger.total[m.number]
		tell(view.ByID(m.ID), book{max(known.ongoing/n, reported.ongoing), max(known.tokens/n, reported.tokens)})
	}
	unsure := slices.Sorted(maps.Keys(stale))
	d.loads.mark(unsure, d.loads.tick)
	if len(limits.Principals) > 0 {
		d.show(unsure, now)
	}
	router.SetForeignLoad(foreign)
	router.Look()
	d.eject(router, now)
	d.hosted.Load().flush(d.numberOf)
	d.wakeWatchers()
}

// show puts the load into force as it is shown to those who are not trusted: of what we have booked ourselves each prompt counts
// whole. From what is not cached of a prompt, as the Router counts it, who asks could tell what is. Called with mu held.
func (d *deployment) show(stale []uint32, now time.Time) {
	own := d.picks.leases.uncached()
	d.shown.update(d.roster.order, func(m *member) book {
		total, _ := d.totalOf(m, own[m.number], now)
		return total
	}, now)
	d.shown.mark(stale, d.shown.tick)
}

// loadsFor is the load as a caller may see it. Called with mu held.
func (d *deployment) loadsFor(p *principal) *loads {
	if p.trusted() {
		return &d.loads
	}
	return &d.shown
}

// totalOf is the load of a replica of which this much is our own. It is not fresh where the replica used to tell of
// itself and has stopped. Called with mu held.
func (d *deployment) totalOf(m *member, own book, now time.Time) (total book, fresh bool) {
	total = own
	total.add(d.ledger.total[m.number], 1)
	load, heard, tells := d.reportedBy(m.ID)
	if !tells {
		return total, true
	}
	if now.Sub(heard) >= time.Duration(d.limits.Load().StaleAfter) {
		return total, false
	}
	return book{max(total.ongoing, load.ongoing), max(total.tokens, load.tokens)}, true
}

// reportedBy is the load that a replica reports itself, as it registered or as it was asked; false if it never did.
func (d *deployment) reportedBy(id string) (load book, heard time.Time, ok bool) {
	if load, heard, ok = d.sources.loadOf(id); ok {
		return load, heard, ok
	}
	return d.polls.loadOf(id)
}
