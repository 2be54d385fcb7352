package router

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router/state"
)

// While others are only full, a request waits for them; when one comes back it is served.
func TestWaitWhileEjected(t *testing.T) {
	w := newWard(t, 2, func(o *Options) { o.MaxOngoing = 1 })
	for range 5 {
		w.fail("r0")
	}
	_, full := w.send("r1")
	waiter := enqueue(t, w.Router, &policy.Request{Answer: state.AnswerMessage})
	require.Equal(t, []*policy.Replica{w.View().ByID("r1")}, waiter.b.Decision.WaitFor)
	w.pass(11 * time.Second)
	w.Health.Look()
	require.False(t, waiter.waiting, "its trial took the waiter")
	require.Equal(t, "r0", waiter.b.Decision.Replica.ID)
	require.NoError(t, waiter.err)
	full.Release()
}

func TestWatchedPickDoesNotAllocate(t *testing.T) {
	w := newWard(t, 8)
	w.warm(time.Millisecond)
	q, b := &policy.Request{Answer: state.AnswerMessage}, new(Reservation)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_ = w.Reserve(t.Context(), q, b, How{NoWait: true})
		took := b.Answered()
		b.Release()
		w.Complete(q, b.Decision, policy.Outcome{Sent: true, FirstMessage: took})
	}))
}

// What watching a call costs, from the pick to its end: beside one that nobody watches, and with a session that is remembered.
func BenchmarkWatched(b *testing.B) {
	for name, answer := range map[string]state.Answer{"unseen": state.AnswerUnseen, "message": state.AnswerMessage} {
		b.Run(name, func(b *testing.B) {
			r := connected(b, Options{Policy: bySession(), Ejection: new(policy.Ejection), DrainGrace: time.Minute}, members(8)...)
			q, bk := &policy.Request{Answer: answer, Session: "session"}, new(Reservation)
			b.ReportAllocs()
			for b.Loop() {
				_ = r.Reserve(b.Context(), q, bk, How{NoWait: true})
				took := bk.Answered()
				bk.Release()
				r.Complete(q, bk.Decision, policy.Outcome{Sent: true, FirstMessage: took, Usage: policy.NoUsage})
			}
		})
	}
}

// Who waits does not need another's pick to be served: neither at the end of an ejection, nor after a trial that ended
// without a word, nor once a slow start has room.
func TestWhoWaitsIsServedByTime(t *testing.T) {
	var ring func()
	w := newWard(t, 2, func(o *Options) {
		o.MaxOngoing = 1
		o.AfterFunc = func(_ time.Duration, f func()) func() {
			ring = f
			return func() { ring = nil }
		}
	})
	for range 5 {
		w.fail("r1")
	}
	require.Equal(t, outlier.Ejected, w.condition("r1"))
	_, busy := w.send("")
	require.Equal(t, "r0", busy.Decision.Replica.ID)
	served := make(chan *Reservation, 2)
	wait := func() {
		queued := w.Queued()
		go func() {
			b := new(Reservation)
			if w.Reserve(t.Context(), &policy.Request{Answer: state.AnswerMessage}, b, How{}) == nil {
				served <- b
			}
		}()
		require.Eventually(t, func() bool { return w.Queued() > queued }, 20*time.Second, time.Millisecond)
	}
	wait()
	wait()
	w.mu.Lock()
	w.now = w.now.Add(10 * time.Second) // base_time
	at := ring
	w.mu.Unlock()
	require.NotNil(t, at)
	at()
	trial := <-served
	require.Equal(t, "r1", trial.Decision.Replica.ID)
	trial.Release() // it was given up
	require.Equal(t, "r1", (<-served).Decision.Replica.ID)
}

// crowd is a ward of full replicas, for which 100 requests wait; asked counts how often the policy chooses.
func crowd(t *testing.T, n int) (w *ward, asked *int) {
	asked = new(int)
	w = newWard(t, n, func(o *Options) {
		o.MaxOngoing = 1
		o.Policy = choosing(func(q *policy.Request, v policy.View) policy.Decision {
			*asked++
			return leastLoaded(q, v)
		})
	})
	for range n {
		w.send("")
	}
	for range 100 {
		q := &policy.Request{Answer: state.AnswerMessage}
		require.ErrorIs(t, w.Reserve(t.Context(), q, new(Reservation), How{Ticket: new(Ticket)}), ErrQueued)
	}
	*asked = 0
	return w, asked
}

// eject lets outlier detection eject a replica, which the Router has not noticed yet.
func (w *ward) eject(id string) {
	o := &policy.Outcome{Err: errFault, Sent: true, Fault: state.Failed}
	for range 5 {
		w.Outliers().Ended(w.Outlier(w.View().ByID(id)), &state.Mark{Picked: w.now}, o)
	}
	require.Equal(w.t, outlier.Ejected, w.condition(id))
}

// However many calls end while the lock is taken, an ejection lets the queue choose once.
func TestCallsThatEndTogetherAskOnce(t *testing.T) {
	w, asked := crowd(t, 4)
	w.mu.Lock()
	w.eject("r0")
	var started, ended sync.WaitGroup
	for range 20 {
		started.Add(1)
		ended.Go(func() {
			started.Done()
			w.Health.Sync()
		})
	}
	started.Wait()
	w.mu.Unlock()
	ended.Wait()
	once := *asked
	require.Positive(t, once)
	w.Health.force()
	require.Equal(t, 2*once, *asked)
}

// A change of the fleet that also changes outlier detection lets the queue choose once.
func TestFleetChangeAsksOnce(t *testing.T) {
	w, asked := crowd(t, 4)
	w.eject("r0")
	w.Health.Sync()
	*asked = 0
	w.Fleet.Set(members(4)[1:])
	require.Equal(t, 100, *asked)
	w.Health.Sync()
	require.Equal(t, 100, *asked)
}

// A probe that begins frees no replica.
func TestProbeLeavesTheQueueAlone(t *testing.T) {
	w, _ := crowd(t, 2)
	w.eject("r0")
	w.pass(11 * time.Second)
	w.Health.Look() // half-open, and full
	require.Equal(t, outlier.HalfOpen, w.condition("r0"))
	before := w.Outliers().Version()
	var probe outlier.Attempt
	w.Outliers().Begin(&probe, w.Outlier(w.View().ByID("r0")), state.AnswerMessage, 1, "", w.now)
	require.True(t, probe.Probe)
	require.Equal(t, before, w.Outliers().Version())
	w.Outliers().End(&probe)
	require.Greater(t, w.Outliers().Version(), before, "another may follow")
}
