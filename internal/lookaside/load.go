package lookaside

import (
	"errors"
	"slices"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	routerload "github.com/warmpath/warmpath/internal/router/load"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A load is what is reserved on one replica.
type load struct{ ongoing, tokens int64 }

// less is the load without another, not below zero.
func (l load) less(o load) load { return load{max(l.ongoing-o.ongoing, 0), max(l.tokens-o.tokens, 0)} }

// add adds what a Router has reserved on a replica.
func (l *load) add(rep *policy.Replica) {
	l.ongoing += int64(rep.Ongoing())
	l.tokens += int64(rep.QueuedTokens())
}

// peerLoad is the load that other clients put on the replicas. It is used with view.mu held.
type peerLoad struct {
	ledger  *ledger // of the server that is followed
	damping routerload.Damping
	peers   []routerload.Peer // in force
	halved  bool              // since it was adopted
	fresh   time.Time         // when a server with the load of one replica at least last sent anything
}

// begin is for a new stream.
func (p *peerLoad) begin() { p.ledger, p.halved = newLedger(), false }

// adopt takes the peer load from the ledger, damped, without what the server reserved for this client, which counts
// there as a peer's, and with what Routers that were replaced have reserved. It returns false where the server has
// none.
func (p *peerLoad) adopt(m *members, reserved map[string]load, retired map[string]routerload.Peer) bool {
	numbers := m.numbers()
	if !p.ledger.known(numbers) {
		return false
	}
	p.halved = false
	p.peers = make([]routerload.Peer, len(numbers), len(numbers)+len(m.kept))
	for i, l := range p.ledger.peers(numbers) {
		id := m.named[numbers[i]].ID
		l = l.less(reserved[id])
		p.peers[i] = routerload.Peer{
			ID: id, Ongoing: int(l.ongoing) + retired[id].Ongoing, QueuedTokens: l.tokens + retired[id].QueuedTokens,
		}
	}
	p.damping.Damp(p.peers)
	for id := range m.kept {
		p.peers = append(p.peers, routerload.Peer{ID: id})
	}
	return true
}

// any reports whether peers have any load.
func (p *peerLoad) any() bool {
	return slices.ContainsFunc(p.peers, func(f routerload.Peer) bool { return f.Ongoing > 0 || f.QueuedTokens > 0 })
}

// halve halves the load, and reports whether there was any.
func (p *peerLoad) halve() bool {
	left := p.any()
	p.halved = true
	for i := range p.peers {
		p.peers[i].Ongoing /= 2
		p.peers[i].QueuedTokens /= 2
	}
	return left
}

// A report is what a server was sent: the own load by number of the replica, where there is any.
type report struct {
	number uint64
	lines  map[uint32]load
}

// maxUncounted bounds the reports that are remembered. A server that does not count that many is not sent another.
const maxUncounted = 256

// A ledger is the load that a server adds up, and this client's part in it. Replicas are named by the server's numbers.
// It belongs to one stream; it is used with view.mu held.
type ledger struct {
	total map[uint32]load // as of the last update, with this client's part
	stale map[uint32]bool
	sent  []report // the last one that the server has counted in total, and those after it
}

func newLedger() *ledger { return &ledger{total: map[uint32]load{}, sent: make([]report, 1)} }

var errColumns = errors.New("columns of load differ in length")

// take enters an update.
func (l *ledger) take(u *warmpathv1.LoadUpdate) error {
	loads := u.GetLoads()
	ids, ongoing, tokens := loads.GetReplicas(), loads.GetOngoing(), loads.GetQueuedTokens()
	if len(ids) != len(ongoing) || len(ids) != len(tokens) {
		return errColumns
	}
	for len(l.sent) > 1 && l.sent[1].number <= u.GetCounted() {
		l.sent = l.sent[1:]
	}
	if u.GetSnapshot() {
		clear(l.total)
	}
	for i, n := range ids {
		set(l.total, n, load{int64(ongoing[i]), int64(min(tokens[i], 1<<40))})
	}
	if u.GetStaleSet() {
		l.stale = make(map[uint32]bool, len(u.GetStale()))
		for _, n := range u.GetStale() {
			l.stale[n] = true
		}
	}
	return nil
}

// known reports whether the server has the load of one of these replicas at least.
func (l *ledger) known(numbers []uint32) bool {
	return len(numbers) == 0 || slices.ContainsFunc(numbers, func(n uint32) bool { return !l.stale[n] })
}

// peers is the load of peers on each of these replicas: the sum without this client's part. A replica whose load is
// stale gets the mean of the rest.
func (l *ledger) peers(numbers []uint32) []load {
	all := make([]load, len(numbers))
	var sum load
	fresh := int64(0)
	for i, n := range numbers {
		if l.stale[n] {
			continue
		}
		all[i] = l.total[n].less(l.sent[0].lines[n])
		sum.ongoing += all[i].ongoing
		sum.tokens += all[i].tokens
		fresh++
	}
	for i, n := range numbers {
		if l.stale[n] {
			all[i] = load{sum.ongoing / max(fresh, 1), sum.tokens / max(fresh, 1)}
		}
	}
	return all
}

// report returns what is to be sent where this is the own load now; nil if it has not changed and need not be renewed.
func (l *ledger) report(numbers []uint32, own []load, renew bool) *warmpathv1.ReservationReport {
	if len(l.sent) > maxUncounted {
		return nil
	}
	last := l.sent[len(l.sent)-1]
	next := report{last.number + 1, make(map[uint32]load)}
	loads := new(warmpathv1.Loads)
	for i, n := range numbers {
		set(next.lines, n, own[i])
		if last.lines[n] != own[i] {
			loads.Replicas = append(loads.Replicas, n)
			loads.Ongoing = append(loads.Ongoing, uint32(own[i].ongoing))
			loads.QueuedTokens = append(loads.QueuedTokens, uint64(own[i].tokens))
		}
	}
	first := last.number == 0
	if len(loads.Replicas) == 0 && !first && !(renew && len(next.lines) > 0) {
		return nil
	}
	l.sent = append(l.sent, next)
	return &warmpathv1.ReservationReport{Number: next.number, Loads: loads, Complete: first}
}

// forget strikes out a replica that has left; its number is not used again.
func (l *ledger) forget(n uint32) {
	delete(l.total, n)
	delete(l.stale, n)
}

// set enters a load, of which nothing is no entry.
func set[K comparable](m map[K]load, k K, l load) {
	if l == (load{}) {
		delete(m, k)
		return
	}
	m[k] = l
}
