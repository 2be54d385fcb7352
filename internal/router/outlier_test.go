package router

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router/load"
	"github.com/warmpath/warmpath/internal/router/state"
)

func TestEjectAfterFailuresInARow(t *testing.T) {
	w := newHarness(t, 4)
	for range 4 {
		w.fail("r0")
	}
	w.serve("r0", time.Second)
	for range 4 {
		w.fail("r0")
	}
	require.Equal(t, outlier.Healthy, w.condition("r0"), "an answer in between resets the count")
	w.fail("r0")
	require.Equal(t, outlier.Ejected, w.condition("r0"))
	_, cause := w.Outliers().State(w.Outlier(w.View().ByID("r0")))
	require.Equal(t, outlier.CauseFault, cause)
	require.Zero(t, w.picked(200)["r0"])
	require.EqualValues(t, 1, w.Outliers().Stats().Ejections[outlier.CauseFault])
}

// An outcome that is not the replica's fault does not count.
func TestOutcomesThatDoNotEject(t *testing.T) {
	for name, o := range map[string]policy.Outcome{
		"its own status": {Err: errFault, Sent: true},
		"not sent":       {Err: errFault, Fault: policy.Failed},
		"cancelled":      {Err: errFault, Sent: true, Fault: policy.GivenUp},
		"a deadline, before any answer time was learned": {Err: errFault, Sent: true, Fault: policy.TimedOut},
		"after the first message":                        {Err: errFault, Sent: true, Fault: policy.Failed, FirstMessage: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t, 4)
			for range 50 {
				w.end("r0", o)
			}
			require.Equal(t, outlier.Healthy, w.condition("r0"))
		})
	}
}

// An ejected replica comes back by a probe: one request at a time, then slowly. Each ejection is longer.
func TestProbe(t *testing.T) {
	w := newHarness(t, 4)
	eject := func() {
		for range 5 {
			w.fail("r0")
		}
		require.Equal(t, outlier.Ejected, w.condition("r0"))
	}
	eject()
	length := 10 * time.Second
	for range 3 { // its probe fails
		w.pass(length - time.Millisecond)
		require.Zero(t, w.picked(50)["r0"])
		w.pass(round)
		q, b := w.probe("r0")
		require.Zero(t, w.picked(100)["r0"], "one at a time")
		b.Release()
		w.Complete(q, b.Decision, policy.Outcome{Err: errFault, Sent: true, Fault: policy.Failed, Usage: policy.NoUsage})
		require.Equal(t, outlier.Ejected, w.condition("r0"))
		length *= 2
	}
	w.pass(length + round)
	q, b := w.probe("r0") // has no outcome
	b.Release()
	w.Complete(q, b.Decision, policy.Outcome{Err: errFault, Sent: true, Fault: policy.GivenUp, Usage: policy.NoUsage})
	q, b = w.probe("r0")
	w.finish(q, b)
	require.Equal(t, outlier.SlowStart, w.condition("r0"))
	w.pass(30 * time.Second)
	w.picked(1)
	require.Equal(t, outlier.Healthy, w.condition("r0"))
	h := w.Outliers().Stats()
	require.EqualValues(t, 3, h.Ejections[outlier.CauseProbe])
	require.EqualValues(t, 5, h.Probes)
}

// A probe is decided by its first message, however long the stream goes on, and whether or not its wait is
// watched.
func TestProbeOfALongStream(t *testing.T) {
	for name, answer := range map[string]state.Answer{"watched": state.AnswerMessage, "both ways": state.AnswerUnseen} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t, 3)
			r0 := w.View().ByID("r0")
			stream := func() *Reservation {
				for range 5 {
					w.fail("r0")
				}
				w.pass(time.Hour)
				w.Health.Look()
				require.Equal(t, outlier.HalfOpen, w.condition("r0"))
				require.True(t, w.View().Available(new(policy.Request), r0))
				b := pick(t, w.Router, answering(answer, policy.Request{Exclude: []string{"r1", "r2"}}))
				require.False(t, w.View().Available(new(policy.Request), r0), "one at a time")
				b.Answered()
				require.Equal(t, outlier.SlowStart, w.condition("r0"))
				return b
			}
			first, second := stream(), stream()
			first.Release()
			second.Release()
		})
	}
}

func TestShareOfTheFleet(t *testing.T) {
	for n, most := range map[int]int{1: 0, 2: 1, 3: 1, 6: 1, 7: 2, 10: 3, 20: 6} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			w := newHarness(t, n)
			for i := range n {
				for range 10 {
					w.fail(fmt.Sprintf("r%d", i))
				}
			}
			out := 0
			for i := range n {
				if w.condition(fmt.Sprintf("r%d", i)) == outlier.Ejected {
					out++
				}
			}
			require.Equal(t, most, out)
		})
	}
}

// Outlier detection is only a preference.
func TestOnlyEjectedReplicas(t *testing.T) {
	w := newHarness(t, 3)
	for range 5 {
		w.fail("r0")
	}
	b := pick(t, w.Router, &policy.Request{Exclude: []string{"r1", "r2"}})
	require.Equal(t, "r0", b.Decision.Replica.ID)
	b.Release()
	w.Fleet.SetConnected("r1", false)
	w.Fleet.SetConnected("r2", false)
	b = pick(t, w.Router, new(policy.Request))
	require.Equal(t, "r0", b.Decision.Replica.ID)
}

// The health of a replica ends when it leaves or is replaced by another with its id.
func TestHealthEndsWithTheReplica(t *testing.T) {
	w := newHarness(t, 3)
	eject := func() {
		for range 5 {
			w.fail("r0")
		}
		require.Equal(t, outlier.Ejected, w.condition("r0"))
	}
	eject()
	w.Fleet.Set(members(3)[1:])
	w.Fleet.Set(members(3))
	w.Fleet.SetConnected("r0", true)
	require.Equal(t, outlier.Healthy, w.condition("r0"))
	eject()
	ms := members(3)
	ms[0].Instance = "a"
	w.Fleet.Set(ms)
	require.Equal(t, outlier.Ejected, w.condition("r0"), "an unchanged member keeps its health")
	ms[0].Instance = "b"
	w.Fleet.Set(ms)
	require.Equal(t, outlier.Healthy, w.condition("r0"))
}

// An assigned request ends a mark that has expired; a replica in slow start, or one that drains for all but its
// own sessions, takes it.
func TestAssignedIsTrusted(t *testing.T) {
	w := newHarness(t, 3)
	_, b := w.send("r0")
	b.Refused(load.Report{Ongoing: 4, QueuedTokens: -1})
	assigned := func(id string) error {
		return w.Reserve(t.Context(), answering(state.AnswerMessage, policy.Request{}), new(Reservation), How{Assigned: &Assigned{Replica: id}})
	}
	require.ErrorIs(t, assigned("r0"), ErrFull)
	w.pass(firstHold)
	require.NoError(t, assigned("r0"))

	w.pass(time.Minute)
	w.Fleet.Set(members(4))
	w.Fleet.SetConnected("r3", true)
	require.Equal(t, outlier.SlowStart, w.condition("r3"))
	for range 3 {
		require.NoError(t, assigned("r3"))
	}
	w.Fleet.Drain("r2")
	require.NoError(t, assigned("r2"))
	for range 5 {
		w.fail("r1")
	}
	require.ErrorIs(t, assigned("r1"), ErrNoSuchReplica)
	w.pass(10 * time.Second)
	require.NoError(t, assigned("r1"), "its probe")
	require.ErrorIs(t, assigned("r1"), ErrNoSuchReplica, "one at a time")
}

// A probe that ends with a status which is no evidence neither brings the replica back nor ejects it again: the next
// request is another probe.
func TestProbeThatProvesNothing(t *testing.T) {
	for name, answer := range map[string]state.Answer{"watched": state.AnswerMessage, "not watched": state.AnswerUnseen} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t, 3)
			for range 5 {
				w.fail("r0")
			}
			w.pass(time.Hour)
			w.Health.Look()
			only := func() (*policy.Request, *Reservation) {
				q := answering(answer, policy.Request{Exclude: []string{"r1", "r2"}})
				b := pick(t, w.Router, q)
				require.True(t, b.Decision.Probe())
				return q, b
			}
			for range 3 {
				q, b := only()
				b.Release()
				w.Complete(q, b.Decision, policy.Outcome{Err: errFault, Sent: true, Usage: policy.NoUsage})
				require.Equal(t, outlier.HalfOpen, w.condition("r0"))
			}
			q, b := only()
			w.finish(q, b)
			require.Equal(t, outlier.SlowStart, w.condition("r0"))
			require.Zero(t, w.Outliers().Stats().Ejections[outlier.CauseProbe])
		})
	}
}
