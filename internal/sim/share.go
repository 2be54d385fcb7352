package sim

import (
	"time"

	"github.com/warmpath/warmpath/balancer/routing"
)

// sharing is the look-aside server that adds up load, and what every client remembers of its own reports.
//
// Client c of K reports at (n + c/K) intervals, the server answers at n intervals, after client 0's report.
type sharing struct {
	next    time.Duration // when something happens next; never if nothing is shared
	routers []*routing.Router
	every   time.Duration
	round   int64
	turn    int // who reports next; len(routers) = the server's turn

	// reports are each client's last one, which is what the server's sum counts: a client that is told the
	// number of it takes it off again.
	reports [][]routing.ForeignLoad
	total   []routing.ForeignLoad
	others  []routing.ForeignLoad // what one client is told
}

func newSharing(routers []*routing.Router, every time.Duration, on bool) *sharing {
	if !on {
		return &sharing{next: never}
	}
	blank := func() []routing.ForeignLoad {
		loads := make([]routing.ForeignLoad, len(routers[0].View().Replicas()))
		for i, rep := range routers[0].View().Replicas() {
			loads[i].ID = rep.ID
		}
		return loads
	}
	s := &sharing{routers: routers, every: every, total: blank(), others: blank()}
	for range routers {
		s.reports = append(s.reports, blank())
	}
	return s
}

// tick does what is due at next.
func (s *sharing) tick() {
	s.report(s.turn)
	if s.turn == 0 {
		s.broadcast()
	}
	if s.turn++; s.turn == len(s.routers) {
		s.turn = 0
		s.round++
	}
	s.next = time.Duration(s.round)*s.every + s.every*time.Duration(s.turn)/time.Duration(len(s.routers))
}

// report is a client's bookings of now.
func (s *sharing) report(c int) {
	for i, rep := range s.routers[c].View().Replicas() {
		now := &s.reports[c][i]
		before := *now
		now.Ongoing, now.QueuedTokens = rep.Ongoing(), int64(rep.QueuedTokens())
		s.total[i].Ongoing += now.Ongoing - before.Ongoing
		s.total[i].QueuedTokens += now.QueuedTokens - before.QueuedTokens
	}
}

// broadcast tells every client what the others have booked.
func (s *sharing) broadcast() {
	for c, router := range s.routers {
		for i := range s.others {
			own := &s.reports[c][i]
			s.others[i].Ongoing = s.total[i].Ongoing - own.Ongoing
			s.others[i].QueuedTokens = s.total[i].QueuedTokens - own.QueuedTokens
		}
		router.SetForeignLoad(s.others)
	}
}
