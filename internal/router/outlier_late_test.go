package router

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router/state"
)

// A replica that takes requests and never answers is detected by the calls that wait, before any of them ends.
func TestHungReplica(t *testing.T) {
	w := newHarness(t, 4)
	w.warm(200 * time.Millisecond)
	var hung []*Reservation
	for range 5 {
		_, b := w.send("r0")
		hung = append(hung, b)
	}
	for range 15 {
		w.serve("r1", 150*time.Millisecond)
		w.serve("r2", 150*time.Millisecond)
	}
	require.Equal(t, outlier.Healthy, w.condition("r0"), "4.5 s are not late")
	w.serve("r1", 600*time.Millisecond)
	w.serve("r1", 0)
	require.Equal(t, outlier.Ejected, w.condition("r0"))
	_, cause := w.Outliers().State(w.Outlier(w.View().ByID("r0")))
	require.Equal(t, outlier.CauseLate, cause)
	for _, b := range hung {
		b.Release()
	}
	// Its probe waits as long: the replica is ejected again, for longer.
	w.pass(10 * time.Second)
	w.probe("r0")
	w.pass(5*time.Second + round)
	w.serve("r1", 0)
	require.Equal(t, outlier.Ejected, w.condition("r0"))
	w.pass(19 * time.Second)
	require.Zero(t, w.picked(100)["r0"])
}

// One call that waits is enough, after some time.
func TestOneHungCall(t *testing.T) {
	w := newHarness(t, 3)
	w.warm(200 * time.Millisecond)
	w.send("r0")
	for range 24 {
		w.pass(800 * time.Millisecond)
		w.serve("r1", 200*time.Millisecond)
	}
	require.Equal(t, outlier.Healthy, w.condition("r0"))
	w.serve("r1", 200*time.Millisecond)
	w.pass(time.Second)
	w.serve("r1", 200*time.Millisecond)
	require.Equal(t, outlier.Ejected, w.condition("r0"))
	w.pass(10*time.Second + round)
	w.serve("r0", 200*time.Millisecond)
	for range 100 { // the call still waits, and counts no longer
		w.pass(800 * time.Millisecond)
		w.serve("r1", 200*time.Millisecond)
	}
	require.Equal(t, outlier.Healthy, w.condition("r0"))
}

// A probe that is never answered ends when it is late, though its call goes on: the next probe may follow.
func TestProbeThatHangs(t *testing.T) {
	w := newHarness(t, 3)
	w.warm(200 * time.Millisecond)
	for range 5 {
		w.fail("r0")
	}
	r0 := w.View().ByID("r0")
	open := func() bool {
		w.Health.Look()
		return w.View().Available(new(policy.Request), r0)
	}
	w.pass(10*time.Second + round)
	hung, h := w.probe("r0")
	require.False(t, open(), "one at a time")
	w.pass(5*time.Second + round)
	w.Health.Look()
	require.Equal(t, outlier.Ejected, w.condition("r0"))
	w.pass(20*time.Second + round)
	require.True(t, open())
	q := answering(state.AnswerMessage, policy.Request{Exclude: []string{"r1", "r2"}})
	b := pick(t, w.Router, q)
	require.True(t, b.Decision.Probe())
	require.False(t, open())

	// The outcome of the first probe does not count for the second.
	h.Release()
	w.Complete(hung, h.Decision, policy.Outcome{Err: errFault, Sent: true, Fault: policy.TimedOut, Usage: policy.NoUsage})
	require.Equal(t, outlier.HalfOpen, w.condition("r0"))
	w.finish(q, b)
	require.Equal(t, outlier.SlowStart, w.condition("r0"))
}

// A probe of which only the end is seen may hang without being late. The next one follows when the ejection time
// has passed once more, and either of them brings the replica back.
func TestUnseenProbeThatHangs(t *testing.T) {
	for _, answers := range []string{"the first", "the second"} {
		t.Run(answers, func(t *testing.T) {
			w := newHarness(t, 3)
			for range 5 {
				w.fail("r0")
			}
			r0 := w.View().ByID("r0")
			open := func() bool {
				w.Health.Look()
				return w.View().Available(new(policy.Request), r0)
			}
			only := func() (*policy.Request, *Reservation) {
				q := &policy.Request{Exclude: []string{"r1", "r2"}}
				b := pick(t, w.Router, q)
				require.True(t, b.Decision.Probe())
				return q, b
			}
			w.pass(10*time.Second + round)
			q, b := only()
			require.False(t, open(), "one at a time")
			w.pass(10*time.Second - round)
			require.False(t, open(), "it may take long")
			w.pass(2 * round)
			require.True(t, open())
			require.Equal(t, outlier.HalfOpen, w.condition("r0"), "no probe has ended")
			q2, b2 := only()
			require.False(t, open(), "one at a time, again")
			if answers == "the second" {
				q, b, q2, b2 = q2, b2, q, b
			}
			w.finish(q, b)
			require.Equal(t, outlier.SlowStart, w.condition("r0"))
			b2.Release()
			w.Complete(q2, b2.Decision, policy.Outcome{Err: errFault, Sent: true, Fault: policy.GivenUp, Usage: policy.NoUsage})
			require.Equal(t, outlier.SlowStart, w.condition("r0"))
		})
	}
}

// Calls that are cancelled or exceed their deadline count with the time that they waited.
func TestDeadlinesShorterThanLate(t *testing.T) {
	w := newHarness(t, 3)
	w.warm(200 * time.Millisecond)
	for range 5 {
		q, b := w.send("r0")
		w.serve("r1", 200*time.Millisecond)
		w.pass(time.Second)
		b.Release()
		w.Complete(q, b.Decision, policy.Outcome{Err: errFault, Sent: true, Fault: policy.TimedOut, Usage: policy.NoUsage})
	}
	require.Equal(t, outlier.Ejected, w.condition("r0"))
	for range 50 { // waits that are too short do not count
		q, b := w.send("r2")
		w.serve("r1", 200*time.Millisecond)
		w.pass(100 * time.Millisecond)
		b.Release()
		w.Complete(q, b.Decision, policy.Outcome{Err: errFault, Sent: true, Fault: policy.TimedOut, Usage: policy.NoUsage})
	}
	require.Equal(t, outlier.Healthy, w.condition("r2"))
}

// Where all replicas are slow none is late: neither when nothing is answered, nor when everything is answered
// late.
func TestOverloadEjectsNoReplica(t *testing.T) {
	w := newHarness(t, 4)
	w.warm(100 * time.Millisecond)
	type call struct {
		q *policy.Request
		b *Reservation
	}
	var under []call
	for i := range 2000 {
		q, b := w.send(fmt.Sprintf("r%d", i%4))
		under = append(under, call{q, b})
		w.pass(20 * time.Millisecond)
		if i%2 == 1 { // half of what is offered is served, first come first served
			w.finish(under[0].q, under[0].b)
			under = under[1:]
		}
		for _, rep := range w.View().Replicas() {
			require.Equal(t, outlier.Healthy, w.condition(rep.ID), "step %d", i)
		}
	}
	require.Zero(t, w.Outliers().Stats().Ejections)
}

// A time in which no replica answers, followed by late answers of all, ejects none.
func TestStallEjectsNoReplica(t *testing.T) {
	w := newHarness(t, 4)
	w.warm(100 * time.Millisecond)
	type call struct {
		q *policy.Request
		b *Reservation
	}
	var under []call
	for i := range 32 {
		q, b := w.send(fmt.Sprintf("r%d", i/8))
		under = append(under, call{q, b})
	}
	for range 300 {
		w.pass(round)
		w.Health.Look()
	}
	for _, c := range under {
		w.finish(c.q, c.b)
		w.Health.Look()
	}
	require.Zero(t, w.Outliers().Stats().Ejections)
}

// A replica that gets more than it can serve, while others idle, is not ejected: it answers all the time.
func TestImbalanceEjectsNoReplica(t *testing.T) {
	w := newHarness(t, 4)
	const service = 200 * time.Millisecond
	type call struct {
		q      *policy.Request
		b      *Reservation
		picked time.Time
	}
	queues := map[string][]call{}
	for step := range 4000 { // of 10 ms
		if step%10 == 0 { // twice what it can serve
			q, b := w.send("r0")
			queues["r0"] = append(queues["r0"], call{q, b, w.now})
		}
		if step%40 == 0 {
			id := fmt.Sprintf("r%d", 1+step/40%3)
			q, b := w.send(id)
			queues[id] = append(queues[id], call{q, b, w.now})
		}
		w.pass(10 * time.Millisecond)
		for id, queue := range queues {
			if len(queue) > 0 && (id == "r0" && step%20 == 0 || id != "r0" && w.now.Sub(queue[0].picked) >= service) {
				w.finish(queue[0].q, queue[0].b)
				queues[id] = queue[1:]
			}
		}
		require.Equal(t, outlier.Healthy, w.condition("r0"), "step %d", step)
	}
	require.Greater(t, len(queues["r0"]), 100)
}

// A replica that answers far later than the fleet is ejected.
func TestSlowReplica(t *testing.T) {
	w := newHarness(t, 4)
	w.warm(500 * time.Millisecond)
	for range 5 {
		q, b := w.send("r3")
		for range 10 {
			w.serve("r0", 400*time.Millisecond)
			w.serve("r1", 600*time.Millisecond)
		}
		w.finish(q, b)
	}
	require.Equal(t, outlier.Ejected, w.condition("r3"))
}

// A replica that is slow only because its prompts are long is not late.
func TestLongPromptsAreNotLate(t *testing.T) {
	w := newHarness(t, 4)
	ask := func(on string, tokens int) (*policy.Request, *Reservation) {
		q := answering(state.AnswerMessage, policy.Request{Pin: on, PromptTokens: tokens})
		return q, pick(t, w.Router, q)
	}
	for i := range 200 {
		tokens := 500 << (i % 5)
		q, b := ask(fmt.Sprintf("r%d", i%4), tokens)
		w.pass(time.Duration(tokens) * time.Millisecond)
		w.finish(q, b)
	}
	for range 5 {
		ask("r0", 60_000)
	}
	for range 60 {
		w.pass(800 * time.Millisecond)
		w.serve("r1", 200*time.Millisecond)
		w.serve("r2", 0)
	}
	require.Equal(t, outlier.Healthy, w.condition("r0"))
}
