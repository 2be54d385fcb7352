package router

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router/state"
)

// A replica that is new, or back after a while, gets its requests slowly; one with a short loss of its connection
// does not.
func TestSlowStart(t *testing.T) {
	w := newHarness(t, 4, func(o *Options) { o.Policy = choosing(leastLoaded) })
	require.Equal(t, outlier.Healthy, w.condition("r3"), "all were new together")
	w.pass(time.Minute)
	for range 40 {
		w.send("")
	}
	w.Fleet.Set(members(5))
	w.Fleet.SetConnected("r4", true)
	require.Equal(t, outlier.SlowStart, w.condition("r4"))
	for range 20 {
		w.send("")
	}
	require.Equal(t, 1, w.View().ByID("r4").Ongoing(), "without slow start there would be 16")
	w.pass(15 * time.Second)
	for range 20 {
		w.send("")
	}
	most := w.View().ByID("r4").Ongoing()
	require.Greater(t, most, 5)
	require.Less(t, most, 12)
	w.pass(16 * time.Second)
	for range 20 {
		w.send("")
	}
	require.Greater(t, w.View().ByID("r4").Ongoing(), 15)

	w.Fleet.SetConnected("r0", false)
	w.Fleet.SetConnected("r0", true)
	require.Equal(t, outlier.Healthy, w.condition("r0"), "a short loss of the connection")
	w.Fleet.SetConnected("r0", false)
	w.pass(time.Minute)
	w.Fleet.SetConnected("r0", true)
	require.Equal(t, outlier.SlowStart, w.condition("r0"))
	w.Fleet.Disconnect()
	w.pass(time.Minute)
	connectAll(w.Router)
	require.Equal(t, outlier.Healthy, w.condition("r1"), "all are back together")
}

// Where a replica gets the requests of its keys, holding some back would move them twice.
func TestNoSlowStartByKey(t *testing.T) {
	w := newHarness(t, 4, func(o *Options) { o.Policy = policy.Policy{Uses: policy.SharesByKey, Choose: leastLoaded} })
	w.pass(time.Minute)
	w.Fleet.Set(members(5))
	w.Fleet.SetConnected("r4", true)
	require.Equal(t, outlier.Healthy, w.condition("r4"))
}

// A slow start delays no request where the other replicas are full.
func TestSlowStartFallsAway(t *testing.T) {
	w := newHarness(t, 1, func(o *Options) { o.MaxOngoing = 3 })
	w.pass(time.Minute)
	w.Fleet.Set(members(2))
	w.Fleet.SetConnected("r1", true)
	for range 6 {
		w.send("")
	}
	require.ErrorIs(t, w.Reserve(t.Context(), new(policy.Request), new(Reservation), How{NoWait: true}), ErrFull)
}

// A share that grows does not let the waiters choose again: it did not hold them back.
func TestSlowStartLeavesTheQueueAlone(t *testing.T) {
	choices := 0
	w := newHarness(t, 2, func(o *Options) {
		o.MaxOngoing = 1
		o.Policy = choosing(func(q *policy.Request, v policy.View) policy.Decision {
			choices++
			return leastLoaded(q, v)
		})
	})
	w.pass(time.Minute)
	w.Fleet.Set(members(3))
	w.Fleet.SetConnected("r2", true)
	var last *Reservation
	for range 3 {
		_, last = w.send("")
	}
	for range 100 {
		q := answering(state.AnswerMessage, policy.Request{})
		require.ErrorIs(t, w.Reserve(t.Context(), q, new(Reservation), How{Ticket: new(Ticket)}), ErrQueued)
	}
	choices = 0
	for range 400 {
		w.pass(round)
		w.Health.Look()
	}
	require.Equal(t, outlier.Healthy, w.condition("r2"))
	require.Zero(t, choices)
	last.Release()
	require.Equal(t, 99, w.Queued())
}
