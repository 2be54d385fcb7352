package router

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/load"
)

// clock is a clock that a test sets.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time          { return c.now }
func (c *clock) advance(d time.Duration) { c.now = c.now.Add(d) }

func peerLoadOf(r *Router, id string) [2]int64 {
	ongoing, tokens := r.View().ByID(id).PeerLoad()
	return [2]int64{int64(ongoing), tokens}
}

func TestReport(t *testing.T) {
	c := &clock{now: time.Unix(100, 0)}
	r := connected(t, Options{Policy: loading(leastLoaded), Now: c.Now}, members(2)...)
	v := r.View()
	own := pick(t, r, &policy.Request{PromptTokens: 400, Pin: "r0"})

	r.Report("r0", load.Report{Ongoing: 4, QueuedTokens: 1000})
	require.Equal(t, [2]int64{3, 600}, peerLoadOf(r, "r0"), "without the Router's own")
	require.InDelta(t, 400+600+4*500, v.Load(v.ByID("r0")), 1e-9)
	require.Equal(t, 1, v.ByID("r0").Ongoing(), "max_ongoing bounds only the Router's own requests")
	r.Report("unknown", load.Report{Ongoing: 4})
	r.Report("r0", load.Report{Ongoing: 0, QueuedTokens: 100})
	require.Equal(t, [2]int64{0, 0}, peerLoadOf(r, "r0"), "a report without the Router's own calls gives no negative load")

	r.Report("r0", load.Report{Ongoing: 2, QueuedTokens: -1})
	require.Equal(t, [2]int64{1, 0}, peerLoadOf(r, "r0"))
	r.Report("r0", load.Report{Ongoing: -1, QueuedTokens: -1})
	require.Equal(t, [2]int64{1, 0}, peerLoadOf(r, "r0"), "an empty report changes nothing")
	own.Release()
}

// The later of a report and a broadcast counts; a report only for a time.
func TestReportsExpire(t *testing.T) {
	c := &clock{now: time.Unix(100, 0)}
	r := connected(t, Options{Policy: loading(leastLoaded), Now: c.Now}, members(3)...)
	look := func() {
		t.Helper()
		pick(t, r, &policy.Request{}).Release()
	}
	r.Load.SetPeers([]load.Peer{{ID: "r0", Ongoing: 1, QueuedTokens: 10}})
	r.Report("r0", load.Report{Ongoing: 5, QueuedTokens: -1})
	require.Equal(t, [2]int64{5, 10}, peerLoadOf(r, "r0"), "a field that is not reported keeps its broadcast value")
	c.advance(load.ReportTTL / 2)
	r.Report("r1", load.Report{Ongoing: 6})
	c.advance(load.ReportTTL/2 - time.Millisecond)
	look()
	require.Equal(t, [2]int64{5, 10}, peerLoadOf(r, "r0"))
	c.advance(time.Millisecond)
	require.Equal(t, [2]int64{5, 10}, peerLoadOf(r, "r0"), "only a pick looks at the clock")
	look()
	require.Equal(t, [2]int64{1, 10}, peerLoadOf(r, "r0"), "the broadcast value again")
	require.Equal(t, [2]int64{6, 0}, peerLoadOf(r, "r1"))

	r.Report("r0", load.Report{Ongoing: 7})
	r.Report("r2", load.Report{Ongoing: 8})
	r.Load.SetPeers([]load.Peer{{ID: "r0", Ongoing: 2}, {ID: "r1", Ongoing: 2}})
	require.Equal(t, [2]int64{2, 0}, peerLoadOf(r, "r0"), "the broadcast is later")
	r.Report("r1", load.Report{Ongoing: 9})
	require.Equal(t, [2]int64{9, 0}, peerLoadOf(r, "r1"))
	c.advance(load.ReportTTL - time.Millisecond)
	r.Report("r1", load.Report{Ongoing: 10})
	c.advance(time.Millisecond)
	look()
	require.Equal(t, [2]int64{2, 0}, peerLoadOf(r, "r0"))
	require.Equal(t, [2]int64{10, 0}, peerLoadOf(r, "r1"), "reported again")
	require.Equal(t, [2]int64{0, 0}, peerLoadOf(r, "r2"))
	c.advance(time.Hour)
	look()
	require.Equal(t, [2]int64{2, 0}, peerLoadOf(r, "r1"))

	r.Report("r1", load.Report{Ongoing: 3})
	r.Fleet.Set(members(1))
	r.Fleet.Set(members(3))
	connectAll(r)
	require.Equal(t, [2]int64{0, 0}, peerLoadOf(r, "r1"), "the replica left")
	c.advance(time.Hour)
	look()
}

// A replica that does not answer counts as the mean of those that do, until their answers expire or its own comes.
func TestReplicaIsAssumed(t *testing.T) {
	c := &clock{now: time.Unix(100, 0)}
	r := connected(t, Options{Policy: loading(leastLoaded), Now: c.Now}, members(4)...)
	look := func() { pick(t, r, new(policy.Request)).Release() }
	require.False(t, r.Load.Assume("r0"), "the others have not answered")
	r.Load.SetPeers([]load.Peer{{ID: "r0", Ongoing: 1}, {ID: "r3", Ongoing: 100}})
	require.False(t, r.Load.Assume("r0"))
	r.Report("r1", load.Report{Ongoing: 2, QueuedTokens: 100})
	r.Report("r2", load.Report{Ongoing: 6, QueuedTokens: 300})
	require.True(t, r.Load.Assume("r0"))
	require.Equal(t, [2]int64{4, 200}, peerLoadOf(r, "r0"))
	require.False(t, r.Load.Assume("r0"))
	require.False(t, r.Load.Assume("r1"), "the replica has answered")
	require.False(t, r.Load.Assume("r9"))
	require.True(t, r.Load.Assume(""), "all others")
	require.Equal(t, [2]int64{4, 200}, peerLoadOf(r, "r3"))
	require.False(t, r.Load.Assume(""))
	r.Report("r0", load.Report{Ongoing: 9})
	require.Equal(t, [2]int64{9, 0}, peerLoadOf(r, "r0"))
	c.advance(load.ReportTTL)
	look()
	require.Equal(t, [2]int64{1, 0}, peerLoadOf(r, "r0"), "as broadcast")
	require.False(t, r.Load.Assume("r0"))
}

func TestReplicaCapacity(t *testing.T) {
	sizes := map[string]int{}
	p := choosing(firstFree) // looks at no load
	p.Observer.CapacityChanged = func(id string, kvTokens int) { sizes[id] = kvTokens }
	r := connected(t, Options{Policy: p}, members(2)...)
	require.Zero(t, r.View().ByID("r0").KVTokens())
	r.Report("r0", load.Report{Ongoing: 3, KVTokens: 1000})
	require.Equal(t, map[string]int{"r0": 1000}, sizes)
	require.Equal(t, 1000, r.View().ByID("r0").KVTokens())
	require.Equal(t, [2]int64{0, 0}, peerLoadOf(r, "r0"), "the policy does not look at load")
	clear(sizes)
	r.Fleet.SetCapacity("r0", 1000)
	r.Fleet.SetCapacity("r1", 0)
	r.Fleet.SetCapacity("unknown", 5)
	require.Empty(t, sizes, "no change")
	r.Fleet.SetCapacity("r0", 2000)
	require.Equal(t, map[string]int{"r0": 2000}, sizes)
}

func TestReportConcurrently(t *testing.T) {
	r := connected(t, Options{Policy: loading(leastLoaded), Now: time.Now}, members(4)...)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range 300 {
				q := &policy.Request{PromptTokens: 1 + i}
				b := new(Reservation)
				if r.Reserve(context.Background(), q, b, How{NoWait: true}) != nil {
					continue
				}
				r.Report("r1", load.Report{Ongoing: i, QueuedTokens: int64(i), KVTokens: i})
				r.Load.SetPeers([]load.Peer{{ID: "r2", Ongoing: i}})
				b.Release()
				r.Complete(q, b.Decision, policy.Outcome{FirstMessage: time.Duration(i + 1), Usage: policy.NoUsage})
			}
		})
	}
	all.Wait()
	r.Load.SetPeers([]load.Peer{{ID: "r1"}, {ID: "r2"}})
	require.Zero(t, meanLoad(r.View()))
}

func TestReportDoesNotAllocate(t *testing.T) {
	r := connected(t, Options{Policy: loading(leastLoaded), Now: time.Now}, members(3)...)
	r.Report("r0", load.Report{Ongoing: 1})
	require.Zero(t, testing.AllocsPerRun(100, func() {
		r.Report("r0", load.Report{Ongoing: 2, QueuedTokens: 7, KVTokens: 9})
	}))
}

func TestRanks(t *testing.T) {
	rank := 0
	r := connected(t, Options{Policy: choosing(func(q *policy.Request, v policy.View) policy.Decision {
		d := firstFree(q, v)
		d.SetRank(rank)
		return d
	})}, member("a", room(7), func(m *Member) { m.Ranks = 3 }), member("b", func(m *Member) { m.Ranks = 1 }))
	for want, chosen := range map[int][]int{0: {0}, 2: {2}, policy.AnyRank: {3, 99, -1}} {
		for _, rank = range chosen {
			require.Equal(t, want, pick(t, r, &policy.Request{}).Decision.Rank())
		}
	}
	require.Equal(t, policy.AnyRank, pick(t, r, &policy.Request{Pin: "a"}).Decision.Rank())
	rank = 2
	r.Fleet.SetConnected("a", false)
	require.Equal(t, policy.AnyRank, pick(t, r, &policy.Request{}).Decision.Rank(), "the replica has only one")
}

// What is stored of reports is bounded by the fleet, however often reports and broadcasts overtake each other.
func TestReportsAreBounded(t *testing.T) {
	c := &clock{now: time.Unix(100, 0)}
	r := connected(t, Options{Policy: loading(leastLoaded), Now: c.Now}, members(2)...)
	for i := range 1000 {
		r.Load.SetPeers([]load.Peer{{ID: "r0", Ongoing: i}, {ID: "r1", Ongoing: i}})
		r.Report("r0", load.Report{Ongoing: i, QueuedTokens: -1})
		r.Report("r1", load.Report{Ongoing: i, QueuedTokens: -1})
		if i%10 == 0 {
			r.Fleet.Set(members(1 + i/10%2))
			connectAll(r)
		}
		c.advance(100 * time.Millisecond)
		pick(t, r, new(policy.Request)).Release()
	}
	c.advance(time.Hour)
	pick(t, r, new(policy.Request)).Release()
	require.Equal(t, [2]int64{999, 0}, peerLoadOf(r, "r0"), "the last broadcast")
	r.Report("r0", load.Report{Ongoing: 5, QueuedTokens: -1})
}
