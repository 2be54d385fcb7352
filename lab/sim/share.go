package sim

import (
	"context"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/homeweights"
	"github.com/warmpath/warmpath/internal/loadprobe"
	"github.com/warmpath/warmpath/internal/router"
	routerload "github.com/warmpath/warmpath/internal/router/load"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/lab/enginesim"
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
		calls, spilled := part.OfReplica(rep).TakeHomes()
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

// poll asks replicas before a request is routed, where clients do. The answers come at once, so no other request of the
// client asks meanwhile.
func (r *run) poll(ctx context.Context, f *flight) (asked bool) {
	if r.Share != SharePoll && r.Share != SharePollCount {
		return false
	}
	loadprobe.Before(ctx, f.router, &f.req, func(rep *policy.Replica) bool {
		r.polls++
		f.router.Report(rep.ID, r.loadOf(rep.Index()))
		return true
	})
	return true
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

// subscribers are the policies that subscribe to the engines' own events where no server does it for them. Other
// policies get what a server sends: they are chosen where there are no events.
var subscribers = map[string]bool{"kv_aware": true}

// Subscribes reports whether a policy needs the engines' KV events, or a server that sends them.
func Subscribes(policyName string) bool { return subscribers[policyName] }

// subscribe brings a client's view of the blocks of a prompt up to date: on every engine those up to the first that is
// not there, since those behind it do not count.
//
// A client looks up nothing but the prompt that it routes, so it gets the blocks of that prompt just before,
// as they are: the result is that of following every event, at a hundredth of the cost for 64 clients.
func (r *run) subscribe(rt *router.Router, prompt []uint64) {
	if len(prompt) == 0 {
		return
	}
	r.changes = r.changes[:0]
	for _, m := range r.machines {
		n := m.engine.Published(prompt)
		change := policy.CacheChange{Replica: m.id, BlockTokens: r.block, Stored: prompt[:n]}
		if n < len(prompt) {
			change.Removed = prompt[n : n+1]
		}
		r.changes = append(r.changes, change)
	}
	rt.CacheChanged(r.changes)
}

// contents are the superblocks of one engine in the look-aside server's index, which subscribes to its events:
// the chained hashes at every multiple of policy.SuperblockTokens. A superblock is there as long as the block that
// ends it is.
type contents struct {
	replica string
	every   int // blocks in a superblock
	held    map[uint64]bool
	changes []policy.CacheChange // since the last broadcast
}

func newContents(replica string, blockSize int) *contents {
	return &contents{replica: replica, every: policy.SuperblockTokens / blockSize, held: make(map[uint64]bool)}
}

// KVEvents implements [enginesim.Listener].
func (c *contents) KVEvents(_ time.Duration, events []enginesim.KVEvent) {
	for _, e := range events {
		change := policy.CacheChange{Replica: c.replica, BlockTokens: policy.SuperblockTokens / c.every, Coarse: true}
		if e.Stored {
			for i := c.every - 1 - e.First%c.every; i < len(e.Hashes); i += c.every {
				c.held[e.Hashes[i]] = true
				change.Stored = append(change.Stored, e.Hashes[i])
			}
		} else {
			for _, h := range e.Hashes {
				if c.held[h] {
					delete(c.held, h)
					change.Removed = append(change.Removed, h)
				}
			}
		}
		if len(change.Stored)+len(change.Removed) > 0 {
			c.changes = append(c.changes, change)
		}
	}
}
