package lookaside

import (
	"errors"

	"github.com/warmpath/warmpath/balancer/routing"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A book is what is booked on one replica.
type book struct{ ongoing, tokens int64 }

// A report is what a server was sent and may not have counted yet.
type report struct {
	number uint64
	lines  map[uint32]book // by number of the replica: as they are, not the difference
}

// maxUncounted bounds the reports that are remembered. A server that does not count that many is not sent another.
const maxUncounted = 256

// ledger is the load that a server adds up, and our own part in it. Replicas are named by the server's numbers. It
// belongs to one watch of one server; it is used with Watch.mu held.
type ledger struct {
	total   map[uint32]book // as the server told last, our own part included
	stale   map[uint32]bool
	counted map[uint32]book // our own part of total
	sent    []report        // not counted yet, the oldest first
	last    map[uint32]book // as of the last report
	number  uint64          // of the last report
}

func newLedger() *ledger {
	return &ledger{total: map[uint32]book{}, counted: map[uint32]book{}, last: map[uint32]book{}}
}

var errColumns = errors.New("columns of load differ in length")

// take enters what the server tells.
func (l *ledger) take(u *warmpathv1.LoadUpdate) error {
	loads := u.GetLoads()
	ids, ongoing, tokens := loads.GetReplicas(), loads.GetOngoing(), loads.GetQueuedTokens()
	if len(ids) != len(ongoing) || len(ids) != len(tokens) {
		return errColumns
	}
	for len(l.sent) > 0 && l.sent[0].number <= u.GetCounted() {
		for n, b := range l.sent[0].lines {
			set(l.counted, n, b)
		}
		l.sent = l.sent[1:]
	}
	if u.GetSnapshot() {
		clear(l.total)
	}
	for i, n := range ids {
		set(l.total, n, book{int64(ongoing[i]), int64(min(tokens[i], 1<<40))})
	}
	if u.GetStaleSet() {
		l.stale = make(map[uint32]bool, len(u.GetStale()))
		for _, n := range u.GetStale() {
			l.stale[n] = true
		}
	}
	return nil
}

// knows reports whether the server says that it knows the load of one of these replicas at least.
func (l *ledger) knows(numbers []uint32) bool {
	for _, n := range numbers {
		if !l.stale[n] {
			return true
		}
	}
	return len(numbers) == 0
}

// others writes what others have booked on each of these replicas: the sum less our own part in it. Of a replica whose
// load is stale nothing is known: it gets the mean of the rest.
func (l *ledger) others(numbers []uint32, to []routing.ForeignLoad) {
	var sum book
	fresh := int64(0)
	for i, n := range numbers {
		if l.stale[n] {
			continue
		}
		t, own := l.total[n], l.counted[n]
		b := book{max(t.ongoing-own.ongoing, 0), max(t.tokens-own.tokens, 0)}
		to[i].Ongoing, to[i].QueuedTokens = int(b.ongoing), b.tokens
		sum.ongoing += b.ongoing
		sum.tokens += b.tokens
		fresh++
	}
	for i, n := range numbers {
		if l.stale[n] {
			to[i].Ongoing, to[i].QueuedTokens = int(sum.ongoing/max(fresh, 1)), sum.tokens/max(fresh, 1)
		}
	}
}

// report returns what is to be sent where this is booked now; nil if that is nothing new and need not be renewed.
func (l *ledger) report(numbers []uint32, booked []book, renew bool) *warmpathv1.BookingReport {
	if len(l.sent) >= maxUncounted {
		return nil
	}
	loads, lines := &warmpathv1.Loads{}, make(map[uint32]book)
	busy := false
	for i, n := range numbers {
		b := booked[i]
		busy = busy || b != book{}
		if l.last[n] == b {
			continue
		}
		lines[n] = b
		set(l.last, n, b)
		loads.Replicas = append(loads.Replicas, n)
		loads.Ongoing = append(loads.Ongoing, uint32(b.ongoing))
		loads.QueuedTokens = append(loads.QueuedTokens, uint64(b.tokens))
	}
	first := l.number == 0
	if len(lines) == 0 && !first && !(busy && renew) {
		return nil
	}
	l.number++
	l.sent = append(l.sent, report{l.number, lines})
	return &warmpathv1.BookingReport{Number: l.number, Loads: loads, Complete: first}
}

// forget strikes out a replica that has left; its number is not used again.
func (l *ledger) forget(n uint32) {
	delete(l.total, n)
	delete(l.counted, n)
	delete(l.last, n)
	delete(l.stale, n)
	for _, r := range l.sent {
		delete(r.lines, n)
	}
}

func set(m map[uint32]book, n uint32, b book) {
	if b == (book{}) {
		delete(m, n)
		return
	}
	m[n] = b
}
