package router

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/load"
)

var fullReport = load.Report{Ongoing: 5, QueuedTokens: -1}

// A replica that reports that it is full is skipped while others are free, whatever the policy. After the time of
// its mark it is picked again, and nothing of the mark is left.
func TestRefusedIsSkipped(t *testing.T) {
	for name, p := range map[string]policy.Policy{"first": choosing(firstFree), "two": choosing(leastOfTwo), "load": loading(leastLoaded)} {
		t.Run(name, func(t *testing.T) {
			c := newManual()
			r := connected(t, c.options(Options{Policy: p}), members(3)...)
			b := pick(t, r, &policy.Request{Pin: "r0"})
			b.Refused(fullReport)
			b.Refused(fullReport)
			b.Release()
			require.False(t, b.Held())
			rep := r.View().ByID("r0")
			require.True(t, rep.Full())
			require.Zero(t, rep.Capacity(), "its bound is unchanged: none")
			for range 50 {
				require.NotEqual(t, "r0", pick(t, r, new(policy.Request)).Decision.Replica.ID)
			}
			c.advance(firstHold)
			require.Equal(t, "r0", pick(t, r, &policy.Request{Pin: "r0"}).Decision.Replica.ID)
			require.False(t, rep.Full())
			require.Zero(t, r.queue.marked)
			require.Zero(t, c.armed())
		})
	}
}

// A request that cannot wait is sent where it may be refused rather than failed, but not before the waiters.
func TestRefusedByAll(t *testing.T) {
	c := newManual()
	r := connected(t, c.options(Options{}), members(2)...)
	for _, id := range []string{"r0", "r1"} {
		pick(t, r, &policy.Request{Pin: id}).Refused(fullReport)
	}
	require.Equal(t, "r0", pick(t, r, new(policy.Request)).Decision.Replica.ID)
	pick(t, r, &policy.Request{Pin: "r0"}).Refused(fullReport) // one is left there
	pick(t, r, &policy.Request{Pin: "r1"}).Refused(fullReport)
	w := enqueue(t, r, new(policy.Request))
	require.Equal(t, ErrFull, r.Reserve(t.Context(), new(policy.Request), new(Reservation), How{NoWait: true}))
	require.Equal(t, 1, c.armed())
	c.advance(2 * firstHold) // it is the second time
	require.Equal(t, "r0", servedBy(t, w))
}

// Where a reservation ends there is room for one.
func TestRefusedThenReleased(t *testing.T) {
	c := newManual()
	r := connected(t, c.options(Options{}), members(1)...)
	var bs []*Reservation
	for range 5 {
		bs = append(bs, pick(t, r, new(policy.Request)))
	}
	bs[4].Refused(fullReport)
	bs[3].Refused(fullReport) // sent in the same moment
	w1, w2, w3 := enqueue(t, r, new(policy.Request)), enqueue(t, r, new(policy.Request)), enqueue(t, r, new(policy.Request))
	bs[0].Release()
	require.Equal(t, "r0", servedBy(t, w1))
	require.True(t, w2.waiting)
	require.Equal(t, 3, r.View().ByID("r0").Ongoing())
	bs[1].Release()
	require.Equal(t, "r0", servedBy(t, w2))
	require.True(t, w3.waiting)
}

// The waiters do not all go to a replica when its mark ends: one more, then two, then four, as long as none is
// refused. A mark that is set again lasts longer.
func TestRefusedLetsMoreThrough(t *testing.T) {
	c := newManual()
	r := connected(t, c.options(Options{}), members(1)...)
	pick(t, r, new(policy.Request)).Refused(fullReport)
	var ws []*waiter
	for range 20 {
		ws = append(ws, enqueue(t, r, new(policy.Request)))
	}
	served := func() (n int) {
		for _, w := range ws {
			if !w.waiting {
				n++
			}
		}
		return n
	}
	for _, want := range []int{0, 1, 3, 7} {
		require.Equal(t, want, served())
		c.advance(firstHold)
	}
	require.Equal(t, 15, served())
	for i := 14; i > 8; i-- {
		ws[i].b.Refused(fullReport)
	}
	require.Equal(t, 9, r.View().ByID("r0").Ongoing())
	c.advance(firstHold)
	require.Equal(t, 15, served(), "it lasts twice as long")
	c.advance(firstHold)
	require.Equal(t, 16, served(), "one")
	for i := range ws[:15] {
		ws[i].b.Release()
	}
	require.Equal(t, 20, served(), "a call that ends makes room")
	c.advance(time.Hour)
	require.Zero(t, c.armed())
	pick(t, r, new(policy.Request))
	require.Zero(t, r.queue.marked)
}

func TestRefusedAgainAndAgain(t *testing.T) {
	c := newManual()
	r := connected(t, c.options(Options{}), members(1)...)
	rep := r.View().ByID("r0")
	for _, want := range []int{25, 50, 100, 200, 400, 500, 500} {
		pick(t, r, new(policy.Request)).Refused(fullReport)
		require.Equal(t, time.Duration(want)*time.Millisecond, liveOf(rep).refusals.until.Sub(c.now))
		c.advance(liveOf(rep).refusals.hold)
	}
	c.advance(mostHold)
	pick(t, r, new(policy.Request)).Refused(fullReport)
	require.Equal(t, firstHold, liveOf(rep).refusals.hold, "half a second without a refusal")
}

// A refusal has no effect after its time: neither on the replica that comes back, nor on one that left.
func TestRefusedAndTheFleet(t *testing.T) {
	c := newManual()
	r := connected(t, c.options(Options{}), members(1)...)
	b, late := pick(t, r, new(policy.Request)), pick(t, r, new(policy.Request))
	b.Refused(fullReport)
	r.Fleet.Set([]Member{member("r0", room(7))})
	require.True(t, r.View().ByID("r0").Full(), "other attributes, the same replica")
	require.Equal(t, 7, r.View().ByID("r0").Capacity())
	r.Fleet.Set(nil)
	late.Refused(fullReport)
	require.Empty(t, departed(r))
	r.Fleet.Set(members(1))
	connectAll(r)
	require.False(t, r.View().ByID("r0").Full())
	pick(t, r, new(policy.Request)).Refused(fullReport)
	enqueue(t, r, new(policy.Request))
	require.Equal(t, 1, c.armed())
	require.NoError(t, r.Close())
	require.Zero(t, c.armed())
}

// Routers of many clients share one replica that takes ten: in whichever order, all calls are served in the end,
// and the refusals stay few.
func TestManyClientsAtAFullReplica(t *testing.T) {
	const clients, calls, most = 8, 25, 10
	c := newManual()
	var routers []*Router
	var queue [][]*waiter
	for range clients {
		r := connected(t, c.options(Options{}), members(1)...)
		routers = append(routers, r)
		queue = append(queue, nil)
	}
	var under []*Reservation
	served, refusals := 0, 0
	var send func(i int, q *policy.Request, b *Reservation)
	arrive := func(i int, q *policy.Request) {
		b := new(Reservation)
		w, err := pickOrEnqueue(routers[i], t.Context(), q, b)
		require.NoError(t, err)
		if w != nil {
			queue[i] = append(queue[i], w)
			return
		}
		send(i, q, b)
	}
	send = func(i int, q *policy.Request, b *Reservation) {
		if len(under) < most {
			under = append(under, b)
			return
		}
		refusals++
		b.Refused(fullReport)
		NextAttempt(q, b.Decision.Replica)
		arrive(i, q)
	}
	for i := range clients {
		for range calls {
			arrive(i, new(policy.Request))
		}
	}
	for round := 0; served < clients*calls; round++ {
		require.Less(t, round, 1000, fmt.Sprint(served, " served"))
		c.advance(10 * time.Millisecond)
		for range min(2, len(under)) {
			under[0].Release()
			under, served = under[1:], served+1
		}
		for i := range queue {
			for j := 0; j < len(queue[i]); {
				if w := queue[i][j]; w.waiting {
					j++
				} else {
					queue[i] = append(queue[i][:j], queue[i][j+1:]...)
					require.NoError(t, w.err)
					send(i, w.q, w.b)
				}
			}
		}
	}
	require.Less(t, refusals, 2*clients*calls)
	t.Logf("%d refusals of %d calls", refusals, clients*calls)
}

// An assigned request does not wait, and does not remove the mark of a replica.
func TestAssignedToOneThatRefused(t *testing.T) {
	r := connected(t, newManual().options(Options{MaxOngoing: 5}), members(2)...)
	pick(t, r, &policy.Request{Pin: "r1"}).Refused(load.Report{Ongoing: -1, QueuedTokens: -1})
	for _, how := range []How{{NoWait: true}, {Backoff: time.Second}, {}} {
		b := new(Reservation)
		how.Assigned, how.Ticket = &Assigned{Replica: "r1"}, new(Ticket)
		require.Equal(t, ErrFull, r.Reserve(t.Context(), new(policy.Request), b, how))
		require.False(t, b.Held())
	}
}
