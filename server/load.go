package server

import (
	"maps"
	"slices"
	"time"

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
