package router

import (
	"errors"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/load"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
)

// The model's queue: refusals, priorities and the clock.

// pause is the clock of a model: it ticks whenever it is read, and jumps.
type pause struct {
	manual
	backwards bool // it once went back
}

func newPause() *pause { return &pause{manual: *newManual()} }

func (c *pause) read() time.Time {
	c.now = c.now.Add(time.Millisecond)
	return c.now
}

// fire runs the timers that are due.
func (c *pause) fire() { c.set(c.now) }

// jump moves the clock: a little, past every mark, past everything, or back.
func (m *model) jump() {
	d := []time.Duration{10 * time.Millisecond, firstHold, mostHold, time.Minute, 24 * time.Hour, -time.Second}[m.rnd.IntN(6)]
	m.clock.backwards = m.clock.backwards || d < 0
	m.clock.advance(d)
}

// refuse lets a replica refuse a call that was sent to it, which comes back or ends.
func (m *model) refuse() {
	c := m.one((*call).holds)
	if c == nil {
		return
	}
	m.forget(c)
	own := load.Report{Ongoing: m.count(c.id), QueuedTokens: 0}
	for _, o := range m.live {
		if o.holds() && o.id == c.id {
			own.QueuedTokens += int64(o.charged)
		}
	}
	if m.find(c.id) != nil { // it reports what the Router counts already
		m.reports(c.id, load.Peer{})
	}
	c.b.Refused(own)
	require.False(m.t, c.b.Held())
	if rep := m.r.View().ByID(c.id); rep != nil {
		require.Equal(m.t, m.count(c.id), rep.Ongoing(), "the room was given away")
		require.True(m.t, rep.Full())
	}
	c.b.Refused(own)
	c.b.Release()
	m.collect()
	if m.chance(70) {
		NextAttempt(c.q, c.b.Decision.Replica)
		m.arrive(c.q)
	}
}

// boundNow returns how many reservations a member may have now.
func (m *model) boundNow(mem Member) int {
	n := m.capacity(mem)
	if f := &liveOf(m.r.View().ByID(mem.ID)).refusals; f.marked() {
		n = min(n, int(f.most))
	}
	return n
}

// turnedAway checks that the queue was right to refuse a request.
func (m *model) turnedAway(q *policy.Request, err error, before int) {
	require.ErrorIs(m.t, err, ErrQueueFull)
	require.Equal(m.t, m.bound, before)
	due := m.clock.now.Add(-time.Duration(q.Priority) * 10 * time.Second)
	for _, c := range m.live {
		if c.waiting() && c.q.Priority < q.Priority {
			require.False(m.t, c.w.due.After(due), "a waiter of lower priority is behind it")
		}
	}
	var we *WaitError
	require.ErrorAs(m.t, err, &we)
	require.LessOrEqual(m.t, we.Behind, m.bound)
	require.Zero(m.t, we.Waited)
}

// displaced checks that a call lost its position to one of higher priority, and was the last of the others.
func (m *model) displaced(c *call) {
	require.True(m.t, errors.Is(c.w.err, ErrQueueFull))
	require.Less(m.t, c.q.Priority, m.arrived.Priority)
	for _, o := range m.live {
		if o != c && o.waiting() && o.q != m.arrived && o.q.Priority < m.arrived.Priority {
			require.Negative(m.t, served(o.w, c.w), "it was not the last")
		}
	}
}

// checkQueue checks what holds for every waiter, for the marks and for the alarm.
func (m *model) checkQueue() {
	t, r := m.t, m.r
	all := r.queue.waiters
	var standing line
	for i, w := range all {
		require.True(t, i == 0 || served(all[i-1], w) < 0, "the queue is out of order")
		require.Equal(t, i, all.place(w))
		came := part.OfRequest(w.q).Came
		require.False(t, came.After(r.queue.came))
		require.Equal(t, came.Add(-time.Duration(w.q.Priority)*10*time.Second), w.due)
		for _, o := range all {
			require.True(t, o.seq <= w.seq || !part.OfRequest(o.q).Came.Before(came), "came is not in the order of the numbers")
		}
		if w.stands && w.wants == nil {
			standing = append(standing, w)
		}
	}
	require.True(t, slices.Equal(standing, r.queue.any))
	first := time.Time{}
	for _, mem := range m.fleet {
		l := liveOf(r.view.Load().ByID(mem.ID))
		want := int64(m.boundNow(mem))
		if want == 1<<30 {
			want = state.NoBound
		}
		require.Equal(t, want, l.Max.Load(), mem.ID)
		if !l.refusals.marked() {
			continue
		}
		if !m.clock.backwards {
			require.LessOrEqual(t, l.refusals.until.Sub(m.clock.now), mostHold)
		}
		if u := l.refusals.until; first.IsZero() || u.Before(first) {
			first = u
		}
	}
	require.LessOrEqual(t, m.clock.armed(), 1)
	if !first.IsZero() {
		require.False(t, r.queue.marked.IsZero() || r.queue.marked.After(first), "nothing removes the mark")
	}
	if len(all) > 0 && !first.IsZero() {
		require.Equal(t, 1, m.clock.armed(), "no timer wakes the waiters for a marked replica")
		require.False(t, r.queue.alarm.After(first))
	}
}
