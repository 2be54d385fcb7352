package sim

import (
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	routerload "github.com/warmpath/warmpath/internal/router/load"
)

// sharing is the look-aside server that adds up load and sends changes of the caches, and every client's last report.
//
// The clients report one after the other in the last tenth of an interval, since the server announces when it is going
// to answer: at its end, when all have reported. Each damps what it receives, see [routerload.Damping].
type sharing struct {
	next    time.Duration // when something happens next
	routers []*router.Router
	every   time.Duration
	round   int64
	turn    int // the client that reports next

	// reports are each client's last one, which is what the server's sum counts: a client that receives the
	// number of it takes it off again.
	reports [][]routerload.Peer
	total   []routerload.Peer
	others  []routerload.Peer    // what one client receives
	damping []routerload.Damping // by client
	caches  []*contents          // by engine; none where no policy reads them
}

// newSharing shares load, and caches where there are any.
func newSharing(routers []*router.Router, every time.Duration, caches []*contents) *sharing {
	s := &sharing{routers: routers, every: every, reports: make([][]routerload.Peer, len(routers)),
		damping: make([]routerload.Damping, len(routers)), caches: caches}
	replicas := routers[0].View().Replicas()
	lines := func() []routerload.Peer {
		all := make([]routerload.Peer, len(replicas))
		for i, rep := range replicas {
			all[i].ID = rep.ID
		}
		return all
	}
	s.total, s.others = lines(), lines()
	for c := range s.reports {
		s.reports[c] = lines()
	}
	s.wait()
	return s
}

// due is when something happens next; never where nothing is shared.
func (s *sharing) due() time.Duration {
	if s == nil {
		return never
	}
	return s.next
}

// tick does what is due at next.
func (s *sharing) tick() {
	s.report(s.turn)
	if s.turn++; s.turn == len(s.routers) {
		s.broadcast()
		s.turn = 0
		s.round++
	}
	s.wait()
}

// reporting is the part of an interval, at its end, in which clients report: 1/reporting.
const reporting = 10

// wait sets when the next client reports.
func (s *sharing) wait() {
	window := s.every / reporting
	s.next = time.Duration(s.round+1)*s.every - window + window*time.Duration(s.turn+1)/time.Duration(len(s.routers))
}

// report is a client's reservations of now.
func (s *sharing) report(c int) {
	for i, rep := range s.routers[c].View().Replicas() {
		now := &s.reports[c][i]
		before := *now
		now.Ongoing, now.QueuedTokens = rep.Ongoing(), int64(rep.QueuedTokens())
		s.total[i].Ongoing += now.Ongoing - before.Ongoing
		s.total[i].QueuedTokens += now.QueuedTokens - before.QueuedTokens
	}
}

// broadcast sends every client what the others have reserved, and what has changed in the caches.
func (s *sharing) broadcast() {
	var changes []policy.CacheChange
	for _, c := range s.caches {
		changes = c.flush(changes)
	}
	for c, rt := range s.routers {
		for i := range s.others {
			own := &s.reports[c][i]
			s.others[i].Ongoing = s.total[i].Ongoing - own.Ongoing
			s.others[i].QueuedTokens = s.total[i].QueuedTokens - own.QueuedTokens
		}
		s.damping[c].Damp(s.others)
		rt.Load.SetDrift(s.damping[c].Drift())
		rt.Load.SetPeers(s.others)
		if len(changes) > 0 {
			rt.CacheChanged(changes)
		}
	}
}
