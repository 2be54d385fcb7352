package server

import (
	"slices"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/endpoint"
)

// A teller is a caller that tells how many requests it has at a replica, in place of the end of each.
type teller struct {
	by      *principal
	name    string
	replica uint32 // its number
}

// told are the picks of a teller that are in force.
type told struct {
	ended uint64   // requests that had ended there when the caller told last
	picks []*lease // the oldest first
}

// tells ends picks of a caller whose requests have ended by what it tells: as many as ended since it told last, and no
// more than it has not under way. Picks whose requests it has not begun yet stay.
func (k *picks) tells(p *principal, o *endpoint.Ongoing, v policy.View) {
	var over []*lease
	k.leases.mu.Lock()
	for id, count := range o.Replicas {
		rep := v.ByID(id)
		if rep == nil {
			continue
		}
		t := k.leases.told[teller{by: p, name: o.Caller, replica: numberOf(rep)}]
		if t == nil || count.Ended() <= t.ended { // an answer may overtake another
			continue
		}
		idle := uint64(len(t.picks)) - min(count.Now, uint64(len(t.picks)))
		n := min(count.Ended()-t.ended, idle)
		t.ended = count.Ended()
		for _, x := range slices.Clone(t.picks[:n]) {
			k.leases.forget(x)
			over = append(over, x)
		}
	}
	k.leases.mu.Unlock()
	for _, x := range over {
		x.giveBack()
	}
	for _, x := range over { // after the load, as in expire
		x.release(policy.Outcome{Sent: true, Fault: policy.GivenUp, Usage: policy.NoUsage})
	}
}

// tell notes a lease in force of a caller that tells. Called with mu held.
func (l *leases) tell(x *lease, o *endpoint.Ongoing, replica string) {
	x.teller = teller{by: x.name.by, name: o.Caller, replica: x.replica}
	t := l.told[x.teller]
	if t == nil {
		t = &told{ended: o.Replicas[replica].Ended()}
		l.told[x.teller] = t
	}
	t.picks = append(t.picks, x)
}

// untell removes a lease of a caller that tells. Called with mu held.
func (l *leases) untell(x *lease) {
	t := l.told[x.teller]
	if t == nil {
		return
	}
	if i := slices.Index(t.picks, x); i >= 0 {
		t.picks = slices.Delete(t.picks, i, i+1)
	}
	if len(t.picks) == 0 {
		delete(l.told, x.teller)
	}
}
