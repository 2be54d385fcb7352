package router

import (
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
