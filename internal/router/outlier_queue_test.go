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

// While the others are only full, a request waits for them. When an ejected replica comes back it serves the
// request.
func TestWaitWhileEjected(t *testing.T) {
	w := newHarness(t, 2, func(o *Options) { o.MaxOngoing = 1 })
	for range 5 {
		w.fail("r0")
	}
	_, full := w.send("r1")
	waiter := enqueue(t, w.Router, answering(state.AnswerMessage, policy.Request{}))
	require.Equal(t, []*policy.Replica{w.View().ByID("r1")}, waiter.b.Decision.WaitFor)
	w.pass(11 * time.Second)
	w.Health.Look()
	require.False(t, waiter.waiting, "its probe took the waiter")
	require.Equal(t, "r0", waiter.b.Decision.Replica.ID)
	require.NoError(t, waiter.err)
	full.Release()
}

func TestWatchedPickDoesNotAllocate(t *testing.T) {
	w := newHarness(t, 8)
	w.warm(time.Millisecond)
	q, b := answering(state.AnswerMessage, policy.Request{}), new(Reservation)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_ = w.Reserve(t.Context(), q, b, How{NoWait: true})
		took := b.Answered()
		b.Release()
		w.Complete(q, b.Decision, policy.Outcome{Sent: true, FirstMessage: took})
	}))
}

// The cost of watching a call, from the pick to its end, next to an unwatched call and to one whose session is
// stored.
func BenchmarkWatched(b *testing.B) {
	for name, answer := range map[string]state.Answer{"unseen": state.AnswerUnseen, "message": state.AnswerMessage} {
		b.Run(name, func(b *testing.B) {
			r := connected(b, Options{Policy: bySession(), Ejection: new(policy.Ejection), DrainGrace: time.Minute}, members(8)...)
			q, bk := answering(answer, policy.Request{Session: "session"}), new(Reservation)
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

// A waiter is served without another pick: at the end of an ejection, after a probe that ended without an outcome,
// and once a slow start has room.
func TestWaitersAreServedByTime(t *testing.T) {
	var ring func()
	w := newHarness(t, 2, func(o *Options) {
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
			if w.Reserve(t.Context(), answering(state.AnswerMessage, policy.Request{}), b, How{}) == nil {
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
	probe := <-served
	require.Equal(t, "r1", probe.Decision.Replica.ID)
	probe.Release() // it ends without an outcome
	require.Equal(t, "r1", (<-served).Decision.Replica.ID)
}

// fullHarness is a harness of full replicas, for which 100 requests wait; choices counts how often the policy chooses.
func fullHarness(t *testing.T, n int) (w *harness, choices *int) {
	choices = new(int)
	w = newHarness(t, n, func(o *Options) {
		o.MaxOngoing = 1
		o.Policy = choosing(func(q *policy.Request, v policy.View) policy.Decision {
			*choices++
			return leastLoaded(q, v)
		})
	})
	for range n {
		w.send("")
	}
	for range 100 {
		q := answering(state.AnswerMessage, policy.Request{})
		require.ErrorIs(t, w.Reserve(t.Context(), q, new(Reservation), How{Ticket: new(Ticket)}), ErrQueued)
	}
	*choices = 0
	return w, choices
}

// eject lets outlier detection eject a replica, which the Router has not seen yet.
func (w *harness) eject(id string) {
	o := &policy.Outcome{Err: errFault, Sent: true, Fault: policy.Failed}
	for range 5 {
		w.Outliers().Ended(w.Outlier(w.View().ByID(id)), &state.Mark{Picked: w.now}, o)
	}
	require.Equal(w.t, outlier.Ejected, w.condition(id))
}

// However many calls end while the lock is held, an ejection lets the queue choose once.
func TestCallsThatEndTogetherChooseOnce(t *testing.T) {
	w, choices := fullHarness(t, 4)
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
	once := *choices
	require.Positive(t, once)
	w.Health.force()
	require.Equal(t, 2*once, *choices)
}

// A change of the fleet that also changes outlier detection lets the queue choose once.
func TestFleetChangeChoosesOnce(t *testing.T) {
	w, choices := fullHarness(t, 4)
	w.eject("r0")
	w.Health.Sync()
	*choices = 0
	w.Fleet.Set(members(4)[1:])
	require.Equal(t, 100, *choices)
	w.Health.Sync()
	require.Equal(t, 100, *choices)
}

// A probe that begins frees no replica.
func TestProbeLeavesTheQueueAlone(t *testing.T) {
	w, _ := fullHarness(t, 2)
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
