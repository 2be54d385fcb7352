package router

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

// wants is a policy that takes the replicas that the session names, by letter, and waits for these.
func wants(q *policy.Request, v policy.View) policy.Decision {
	var full []*policy.Replica
	for _, c := range q.Session {
		r := v.ByID(string(c))
		if r == nil {
			continue
		}
		if v.Available(q, r) {
			return policy.To(r, "wanted")
		}
		full = append(full, r)
	}
	return policy.Wait(full...)
}

func fullRouter(t *testing.T, p policy.Policy, ids string) (*Router, map[string]*Reservation) {
	var ms []Member
	for _, c := range ids {
		ms = append(ms, member(string(c), room(1)))
	}
	r := connected(t, Options{Policy: p, Now: ticking()}, ms...)
	held := map[string]*Reservation{}
	for _, m := range ms {
		held[m.ID] = pick(t, r, &policy.Request{Pin: m.ID})
	}
	return r, held
}

func servedBy(t *testing.T, w *waiter) string {
	t.Helper()
	require.False(t, w.waiting, "still waits")
	require.NoError(t, w.err)
	return w.b.Decision.Replica.ID
}

func TestFirstComeFirstServed(t *testing.T) {
	r, held := fullRouter(t, choosing(wants), "ab")
	onlyB := enqueue(t, r, &policy.Request{Session: "b"})
	anyReplica := enqueue(t, r, &policy.Request{})
	onlyA := enqueue(t, r, &policy.Request{Session: "a"})
	both := enqueue(t, r, &policy.Request{Session: "ba"})
	require.Equal(t, []int{0, 1, 2, 3}, []int{onlyB.behind, anyReplica.behind, onlyA.behind, both.behind})

	held["a"].Release()
	require.Equal(t, "a", servedBy(t, anyReplica), "before later waiters; past the one that takes another replica")
	anyReplica.b.Release()
	require.Equal(t, "a", servedBy(t, onlyA))
	require.True(t, both.waiting && onlyB.waiting)
	held["b"].Release()
	require.Equal(t, "b", servedBy(t, onlyB))
	onlyA.b.Release()
	require.Equal(t, "a", servedBy(t, both))
	require.Zero(t, r.Queued())
}

// A waiter whose policy now waits for another replica is queued there in the old order, so that the other's
// release finds it.
func TestWaiterThatWaitsForAnother(t *testing.T) {
	mind := map[string]string{"fickle": "a"}
	r, held := fullRouter(t, choosing(func(q *policy.Request, v policy.View) policy.Decision {
		to := q.Session
		if m, ok := mind[to]; ok {
			to = m
		}
		return wants(&policy.Request{Session: to}, v)
	}), "ab")
	fickle := enqueue(t, r, &policy.Request{Session: "fickle"})
	b := enqueue(t, r, &policy.Request{Session: "b"})
	a := enqueue(t, r, &policy.Request{Session: "a"})
	mind["fickle"] = "b"

	held["a"].Release()
	require.True(t, fickle.waiting)
	require.Equal(t, "a", servedBy(t, a), "the room is not lost on a head that waits for another replica")
	held["b"].Release()
	require.Equal(t, "b", servedBy(t, fickle), "it came before the other waiter for b")
	require.True(t, b.waiting)
}

func TestRoomThatAFleetBrings(t *testing.T) {
	for name, fleet := range map[string][]Member{
		"raised":   {member("a", room(3)), member("b", room(1))},
		"unbound":  {member("a", room(-1)), member("b", room(1))},
		"received": {member("a", room(1)), member("b", room(1)), member("c", room(2))},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := fullRouter(t, choosing(firstFree), "ab")
			w1, w2 := enqueue(t, r, new(policy.Request)), enqueue(t, r, new(policy.Request))
			r.Fleet.Set(fleet)
			r.Fleet.SetConnected("c", true)
			servedBy(t, w1)
			servedBy(t, w2)
		})
	}
}

func TestLoweredCapacity(t *testing.T) {
	r := connected(t, Options{}, member("a", room(3)))
	bs := []*Reservation{pick(t, r, new(policy.Request)), pick(t, r, new(policy.Request)), pick(t, r, new(policy.Request))}
	r.Fleet.Set([]Member{member("a", room(1))})
	w := enqueue(t, r, new(policy.Request))
	bs[0].Release()
	bs[1].Release()
	require.True(t, w.waiting, "one is still under way")
	bs[2].Release()
	require.Equal(t, "a", servedBy(t, w))
}

func TestQueueBound(t *testing.T) {
	for bound, holds := range map[int]int{0: 1000, 3: 3, -1: 1010} {
		r := connected(t, Options{MaxOngoing: 1, MaxQueued: bound}, members(1)...)
		pick(t, r, new(policy.Request))
		for range holds {
			enqueue(t, r, new(policy.Request))
		}
		if bound >= 0 {
			err := r.Reserve(t.Context(), new(policy.Request), new(Reservation), How{})
			require.ErrorIs(t, err, ErrQueueFull)
			require.Equal(t, holds, err.(*WaitError).Behind)
		}
	}
}

// A call whose context ends just as it is served gives the room to the next.
func TestServedTooLate(t *testing.T) {
	r, held := fullRouter(t, choosing(firstFree), "a")
	late, next := enqueue(t, r, new(policy.Request)), enqueue(t, r, new(policy.Request))
	held["a"].Release()
	servedBy(t, late)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := (&Ticket{r, late}).GiveUp(endOf(ctx))
	require.ErrorIs(t, err, context.Canceled)
	require.IsType(t, new(WaitError), err)
	require.False(t, late.b.Held())
	require.Equal(t, "a", servedBy(t, next))
}

// No request waits for what can never come, nor while there is room.
func TestWaitsWithoutEnd(t *testing.T) {
	var answer func(v policy.View) policy.Decision
	pol := choosing(func(_ *policy.Request, v policy.View) policy.Decision { return answer(v) })
	r := connected(t, Options{Policy: pol, MaxOngoing: 1}, members(4)...)
	left := r.View().ByID("r3")
	r.Fleet.Set(members(3))
	r.Fleet.SetConnected("r2", false)
	for name, c := range map[string]struct {
		answer  func(v policy.View) policy.Decision
		replica string
	}{
		"any although there is room":     {func(v policy.View) policy.Decision { return policy.Wait() }, "r0"},
		"one that has room":              {func(v policy.View) policy.Decision { return policy.Wait(v.ByID("r1")) }, "r1"},
		"one that is not connected":      {func(v policy.View) policy.Decision { return policy.Wait(v.ByID("r2")) }, "r0"},
		"one that has left":              {func(v policy.View) policy.Decision { return policy.Wait(left) }, "r0"},
		"nil":                            {func(v policy.View) policy.Decision { return policy.Wait(nil) }, "r0"},
		"picks one that has left":        {func(v policy.View) policy.Decision { return policy.To(left, "x") }, "r0"},
		"picks one that is disconnected": {func(v policy.View) policy.Decision { return policy.To(v.ByID("r2"), "x") }, "r0"},
		"picks one that it made up":      {func(v policy.View) policy.Decision { return policy.To(new(policy.Replica), "x") }, "r0"},
	} {
		t.Run(name, func(t *testing.T) {
			answer = c.answer
			b := pick(t, r, new(policy.Request))
			defer b.Release()
			require.Equal(t, c.replica, b.Decision.Replica.ID)
			require.Equal(t, policy.ReasonLeastLoaded, b.Decision.Reason)
		})
	}
	t.Run("picks one that is full", func(t *testing.T) {
		answer = func(v policy.View) policy.Decision { return policy.To(v.ByID("r1"), "x") }
		b, second := pick(t, r, new(policy.Request)), new(Reservation)
		require.Equal(t, ErrFull, r.Reserve(t.Context(), new(policy.Request), second, How{NoWait: true}))
		require.Equal(t, []*policy.Replica{r.View().ByID("r1")}, second.Decision.WaitFor)
		require.False(t, second.Held())
		b.Release()
	})
}

// A draining replica does not move waiters for any replica into its own queue.
func TestWaitForAnyBesideDraining(t *testing.T) {
	r := connected(t, Options{MaxOngoing: 1}, member("a"), member("b"), member("c", draining))
	pick(t, r, new(policy.Request))
	pick(t, r, new(policy.Request))
	require.Nil(t, enqueue(t, r, new(policy.Request)).wants)
	require.Nil(t, enqueue(t, r, &policy.Request{Exclude: []string{"c"}}).wants)
	some := enqueue(t, r, &policy.Request{Exclude: []string{"b"}})
	require.Equal(t, []*policy.Replica{r.View().ByID("a")}, some.b.Decision.WaitFor)
}

// A release takes no lock while nothing waits: one between the choice of a request and its place in the queue serves it.
func TestReleaseBeforeARequestIsInTheQueue(t *testing.T) {
	whole, two := []Member{member("a", room(1))}, []Member{member("p", room(1), prefills), member("d", room(1), decodes)}
	for name, tt := range map[string]struct {
		fleet         []Member
		held, session string
	}{
		"any":     {whole, "a", ""},
		"one":     {whole, "a", "a"},
		"prefill": {two, "p", ""},
		"decode":  {two, "d", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var held *Reservation
			chosen := false
			clock := func() time.Time { // read on the way into the queue
				if chosen {
					chosen = false
					held.Release()
				}
				return time.Unix(1, 0)
			}
			r := split(t, Options{Now: clock, Policy: choosing(func(q *policy.Request, v policy.View) policy.Decision {
				d := wants(q, v)
				chosen = d.Replica == nil && held != nil
				return d
			})}, tt.fleet...)
			held = pick(t, r, &policy.Request{Pin: tt.held})
			q, ticket := &policy.Request{Session: tt.session}, new(Ticket)
			how := How{Ticket: ticket, Legs: &Legs{Prefill: new(Reservation), Only: true}}
			require.ErrorIs(t, r.Reserve(t.Context(), q, new(Reservation), how), ErrQueued)
			require.Zero(t, r.Queued(), "it still waits")
			require.NoError(t, ticket.Take())
		})
	}
}

// A release while requests wait gives them the room: one that comes at that moment does not overtake them.
func TestReleaseServesThoseThatWaitFirst(t *testing.T) {
	comes := func() {}
	clock := func() time.Time { // read by a request that comes, under the lock
		now := comes
		comes = func() {}
		now()
		return time.Unix(1, 0)
	}
	r := connected(t, Options{Now: clock}, member("a", room(1)))
	held := pick(t, r, new(policy.Request))
	first := enqueue(t, r, new(policy.Request))
	var released sync.WaitGroup
	comes = func() {
		released.Go(held.Release)
		for i := 0; i < 10_000 && r.View().ByID("a").Ongoing() > 0; i++ {
			runtime.Gosched()
		}
	}
	second := enqueue(t, r, new(policy.Request))
	released.Wait()
	require.Equal(t, "a", servedBy(t, first))
	require.True(t, second.waiting)
}
