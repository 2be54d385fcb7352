package router

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/part"
)

// manual is a clock that a test sets; timers fire when it is moved.
type manual struct {
	now    time.Time
	timers []*manualTimer
}

type manualTimer struct {
	at      time.Time
	f       func()
	stopped bool
}

func newManual() *manual { return &manual{now: time.Unix(1000, 0)} }

func (c *manual) options(o Options) Options {
	o.Now = func() time.Time { return c.now }
	o.AfterFunc = func(d time.Duration, f func()) func() {
		t := &manualTimer{at: c.now.Add(d), f: f}
		c.timers = append(c.timers, t)
		return func() { t.stopped = true }
	}
	return o
}

// set moves the clock and fires what is due, in order.
func (c *manual) set(now time.Time) {
	c.now = now
	for {
		var due *manualTimer
		rest := c.timers[:0]
		for _, t := range c.timers {
			switch {
			case t.stopped:
				continue
			case !t.at.After(now) && (due == nil || t.at.Before(due.at)):
				if due != nil {
					rest = append(rest, due)
				}
				due = t
				continue
			}
			rest = append(rest, t)
		}
		c.timers = rest
		if due == nil {
			return
		}
		due.f()
	}
}

func (c *manual) advance(d time.Duration) { c.set(c.now.Add(d)) }

func (c *manual) armed() (n int) {
	for _, t := range c.timers {
		if !t.stopped {
			n++
		}
	}
	return n
}

func full(t *testing.T, c *manual, o Options) (*Router, *Reservation) {
	t.Helper()
	o.MaxOngoing = 1
	r := connected(t, c.options(o), members(1)...)
	return r, pick(t, r, new(policy.Request))
}

func TestPriorityIsAHeadStart(t *testing.T) {
	c := newManual()
	r, held := full(t, c, Options{})
	at := func(seconds int, p int) *waiter {
		c.now = time.Unix(1000, 0).Add(time.Duration(seconds) * time.Second)
		return enqueue(t, r, &policy.Request{Priority: p})
	}
	low := at(0, -1)
	early := at(1, 0)
	normal := at(5, 0)
	high := at(9, 1)   // before all normal ones that came after -1 s
	later := at(17, 1) // both normal ones came more than ten seconds before
	last := at(23, 0)
	require.Equal(t, []int{0, 0, 1, 0, 3, 5}, []int{low.behind, early.behind, normal.behind, high.behind, later.behind, last.behind})
	for i, want := range []*waiter{high, early, normal, later, low, last} {
		held.Release()
		require.False(t, want.waiting, "%d", i)
		require.NoError(t, want.err)
		held = want.b
	}
	require.Zero(t, r.Queued())
}

// However many requests of a higher priority keep coming, a request that came a head start before them is served
// first.
func TestNoWaiterStarves(t *testing.T) {
	c := newManual()
	r, held := full(t, c, Options{MaxQueued: -1})
	low := enqueue(t, r, &policy.Request{Priority: -1})
	var queue []*waiter
	served := 0
	for second := 0; low.waiting; second++ {
		require.Less(t, second, 100)
		c.advance(time.Second)
		for range 3 { // three come, one is served
			queue = append(queue, enqueue(t, r, &policy.Request{Priority: 1}))
		}
		held.Release()
		for _, w := range queue {
			if !w.waiting && w.b.Held() {
				held = w.b
			}
		}
		served++
	}
	require.Equal(t, 19*3+1, served, "after those that came less than two head starts later, and no others")
}

func TestFullQueueTakesTheEarlier(t *testing.T) {
	c := newManual()
	r, held := full(t, c, Options{MaxQueued: 3})
	old := enqueue(t, r, &policy.Request{Priority: -1})
	c.advance(25 * time.Second)
	normal := enqueue(t, r, &policy.Request{})
	low := enqueue(t, r, &policy.Request{Priority: -1})
	c.advance(2 * time.Second)

	_, err := pickOrEnqueue(r, t.Context(), &policy.Request{Priority: -1}, new(Reservation))
	require.EqualError(t, err, "the queue is full (max_queued_requests): it would wait behind 3 others, of which the first has waited 27s")
	high := enqueue(t, r, &policy.Request{Priority: 1})
	require.False(t, low.waiting)
	require.ErrorIs(t, low.err, ErrQueueFull)
	require.EqualError(t, low.err, "waited 2s for a replica with room, behind 2 others, and made room for a request of higher priority: "+ErrQueueFull.Error())
	enqueue(t, r, &policy.Request{Priority: 1})
	require.ErrorIs(t, normal.err, ErrQueueFull, "the last of a lower priority")
	_, err = pickOrEnqueue(r, t.Context(), &policy.Request{Priority: 1}, new(Reservation))
	require.ErrorIs(t, err, ErrQueueFull, "the low one has waited for so long that it is first")
	require.Equal(t, 3, r.Queued())
	held.Release()
	require.False(t, old.waiting)
	require.True(t, high.waiting)
}

// A request that comes back after a failed attempt has its old position, and is not before earlier ones.
func TestRetryKeepsItsPosition(t *testing.T) {
	c := newManual()
	r := connected(t, c.options(Options{MaxOngoing: 1}), members(2)...)
	acquire := func(q *policy.Request) *Reservation {
		b := new(Reservation)
		require.NoError(t, r.Reserve(t.Context(), q, b, How{}))
		return b
	}
	first, second := new(policy.Request), new(policy.Request)
	b1, b2 := acquire(first), acquire(second)
	third := enqueue(t, r, new(policy.Request))
	c.advance(time.Second)
	b2.Release()
	require.False(t, third.waiting)
	fourth := enqueue(t, r, new(policy.Request))
	c.advance(time.Second)
	NextAttempt(second, b2.Decision.Replica)
	back := enqueue(t, r, second)
	require.Equal(t, 0, back.behind)
	require.Equal(t, fourth.since.Add(-time.Second), part.OfRequest(second).Came)
	b1.Release()
	require.False(t, back.waiting)
	require.True(t, fourth.waiting)
}

// The order of the queue is total, whatever the order of arrival.
func TestQueueIsInOrder(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		c := newManual()
		r, held := full(t, c, Options{})
		var back []*policy.Request
		for range 40 {
			q := &policy.Request{Priority: int(rnd.IntN(5) - 2)}
			r.queue.number(part.OfRequest(q), c.now)
			if rnd.IntN(4) == 0 {
				back = append(back, q)
				continue
			}
			if len(back) > 0 && rnd.IntN(3) == 0 {
				enqueue(t, r, back[0])
				back = back[1:]
			}
			enqueue(t, r, q)
			c.now = c.now.Add(time.Duration(rnd.IntN(3000)-500) * time.Millisecond)
		}
		var last *waiter
		for r.Queued() > 0 {
			head := r.queue.waiters[0]
			require.Zero(t, r.queue.waiters.place(head), "seed %d", seed)
			if last != nil {
				require.Negative(t, served(last, head), "seed %d", seed)
			}
			held.Release()
			require.False(t, head.waiting)
			held, last = head.b, head
		}
	}
}
