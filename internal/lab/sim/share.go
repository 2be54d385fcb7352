package sim

import (
	"context"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/homeweights"
	"github.com/warmpath/warmpath/internal/loadprobe"
	"github.com/warmpath/warmpath/internal/router"
	routerload "github.com/warmpath/warmpath/internal/router/load"
)

// sharing is the look-aside server that adds up load and sends changes of the caches, and every client's last report.
//
// With several servers, client i is one of server i mod servers, which follows the engines of the same numbers. What
// one server sends at the end of an interval, the others have for their clients at the end of the next: the worst
// phase.
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
	total   [][]routerload.Peer    // by server, of its clients
	before  [][]routerload.Peer    // as of the interval before
	late    [][]policy.CacheChange // by server, of the interval before
	others  []routerload.Peer      // what one client receives
	damping []routerload.Damping   // by client
	caches  []*contents            // by engine; none where no policy reads them
	homes   homeweights.Learner    // of the server that changes the weights for all
	ids     []string               // of the replicas
}

// newSharing shares load, and caches where there are any.
func newSharing(routers []*router.Router, servers int, every time.Duration, caches []*contents) *sharing {
	s := &sharing{routers: routers, every: every, reports: make([][]routerload.Peer, len(routers)),
		damping: make([]routerload.Damping, len(routers)), caches: caches}
	replicas := routers[0].View().Replicas()
	for _, rep := range replicas {
		s.ids = append(s.ids, rep.ID)
	}
	lines := func() []routerload.Peer {
		all := make([]routerload.Peer, len(replicas))
		for i, rep := range replicas {
			all[i].ID = rep.ID
		}
		return all
	}
	s.late = make([][]policy.CacheChange, servers)
	for range servers {
		s.total, s.before = append(s.total, lines()), append(s.before, lines())
	}
	s.others = lines()
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
	total := s.total[c%len(s.total)]
	for i, rep := range s.routers[c].View().Replicas() {
		now := &s.reports[c][i]
		before := *now
		now.Ongoing, now.QueuedTokens = rep.Ongoing(), int64(rep.QueuedTokens())
		total[i].Ongoing += now.Ongoing - before.Ongoing
		total[i].QueuedTokens += now.QueuedTokens - before.QueuedTokens
		calls, spilled := rep.State().TakeHomes()
		s.homes.Add(rep.ID, homeweights.Calls{All: int(calls), Spilled: int(spilled)})
	}
}

// broadcast sends every client what the others have reserved, and what has changed in the caches.
func (s *sharing) broadcast() {
	changes := make([][]policy.CacheChange, len(s.total))
	for i, c := range s.caches {
		changes[i%len(changes)] = append(changes[i%len(changes)], c.changes...)
		c.changes = nil
	}
	for c, rt := range s.routers {
		own := c % len(s.total)
		for i := range s.others {
			r := &s.reports[c][i]
			s.others[i].Ongoing = s.total[own][i].Ongoing - r.Ongoing
			s.others[i].QueuedTokens = s.total[own][i].QueuedTokens - r.QueuedTokens
		}
		for at := range changes {
			news, load := s.late[at], s.before[at]
			if at == own {
				news, load = changes[at], nil
			}
			for i := range load {
				s.others[i].Ongoing += load[i].Ongoing
				s.others[i].QueuedTokens += load[i].QueuedTokens
			}
			if len(news) > 0 {
				rt.CacheChanged(news)
			}
		}
		s.damping[c].Damp(s.others)
		rt.Load.SetDrift(s.damping[c].Drift())
		rt.Load.SetPeers(s.others)
	}
	if s.homes.Step(time.Unix(0, int64(s.next)), s.ids, true) {
		for _, rt := range s.routers {
			rt.Load.SetHomes(s.homes.Weights())
		}
	}
	s.late = changes
	for at := range s.total {
		copy(s.before[at], s.total[at])
	}
}

// poll asks replicas before a request is routed, where clients do.
func (r *run) poll(ctx context.Context, f *flight) {
	if r.Share != SharePoll && r.Share != SharePollCount {
		return
	}
	loadprobe.Before(ctx, f.router, &f.req, func(rep *policy.Replica) bool {
		if last, ever := r.answered[rep]; ever && r.now-last < loadprobe.Fresh {
			return false
		}
		r.answered[rep] = r.now
		r.polls++
		f.router.Report(rep.ID, r.loadOf(rep.Index()))
		return true
	})
}

// loadOf is what an engine answers.
func (r *run) loadOf(i int) routerload.Report {
	if r.Share == SharePollCount {
		l := r.machines[i].engine.Load()
		return routerload.Report{Ongoing: l.Running + l.Waiting, Waiting: l.Waiting, QueuedTokens: -1}
	}
	var sum routerload.Report
	for _, rt := range r.routers {
		rep := rt.View().Replicas()[i]
		sum.Ongoing += rep.Ongoing()
		sum.QueuedTokens += int64(rep.QueuedTokens())
	}
	return sum
}
