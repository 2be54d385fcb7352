package server

import (
	"time"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

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
	id      string
	source  string                 // of its evidence in outlier detection
	lines   map[uint32]replicaLoad // its reported load, by number of the replica
	last    uint64                 // number of its last report
	counted uint64                 // number of the last report in the load in force
	at      time.Time              // of its last report
	ended   bool                   // its watch has ended
	dropped func()                 // called once when the account is closed; nil = nothing
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
