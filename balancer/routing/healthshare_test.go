package routing

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What others have found bars a replica, lets one request at a time through in our turn, and ends with a slow start.
func TestVerdicts(t *testing.T) {
	w := newWard(t, 4)
	w.pass(time.Minute)
	w.SetVerdicts([]Verdict{{ID: "r0", State: VerdictSuspect, Term: 1}, {ID: "nobody", State: VerdictEjected, Term: 1}})
	require.Equal(t, Ejected, w.condition("r0"))
	_, cause := w.Condition(w.View().ByID("r0"))
	require.Equal(t, CauseTold, cause)
	require.Zero(t, w.picked(200)["r0"])
	require.Empty(t, w.Findings())

	w.SetVerdicts([]Verdict{{ID: "r0", State: VerdictSuspect, Term: 1, Turn: true}})
	q, b := w.trial("r0")
	require.Zero(t, w.picked(200)["r0"], "one at a time")
	require.Equal(t, []Finding{{ID: "r0", Kind: FindingTrying, Term: 1}}, w.Findings())
	w.finish(q, b)
	require.Equal(t, []Finding{{ID: "r0", Kind: FindingWell, Term: 1}}, w.Findings())
	w.SetVerdicts([]Verdict{{ID: "r0", State: VerdictWell, Term: 2}})
	require.Empty(t, w.Findings())
	require.Equal(t, Warming, w.condition("r0"))
	require.EqualValues(t, 1, w.Health().Ejections[CauseTold])
}

// A trial that fails uses the turn up, and is a finding of our own.
func TestTrialForOthers(t *testing.T) {
	w := newWard(t, 4)
	told := []Verdict{{ID: "r0", State: VerdictSuspect, Term: 3, Turn: true}}
	w.SetVerdicts(told)
	q, b := w.trial("r0")
	b.Release()
	w.Complete(q, b.Decision, Outcome{Err: errFault, Sent: true, Fault: Failed, Usage: NoUsage})
	require.Equal(t, []Finding{{ID: "r0", Kind: FindingFailing, Term: 3}}, w.Findings())
	w.SetVerdicts(told) // again: an update that is late
	w.pass(time.Hour)
	require.Zero(t, w.picked(200)["r0"], "while others say so our own time does not matter")
	told[0].State, told[0].Term = VerdictEjected, 4
	w.SetVerdicts(told)
	q, b = w.trial("r0")
	w.finish(q, b)
	require.Equal(t, []Finding{{ID: "r0", Kind: FindingWell, Term: 4}}, w.Findings())
}

// What we found ourselves is told with the term that we knew, and ends when others lift it.
func TestFindings(t *testing.T) {
	w := newWard(t, 4)
	for range 5 {
		w.fail("r0")
	}
	require.Equal(t, []Finding{{ID: "r0", Kind: FindingFailing}}, w.Findings())
	w.SetVerdicts([]Verdict{{ID: "r0", State: VerdictSuspect, Term: 1}})
	require.Equal(t, []Finding{{ID: "r0", Kind: FindingFailing}}, w.Findings())
	w.SetVerdicts([]Verdict{{ID: "r0", Term: 2}})
	require.Empty(t, w.Findings())
	for range 5 {
		w.fail("r0")
	}
	require.Equal(t, []Finding{{ID: "r0", Kind: FindingFailing, Term: 2}}, w.Findings())
}

// Calls that wait there while others say so still count: they are the second opinion.
func TestSecondOpinionOfCallsThatWait(t *testing.T) {
	w := newWard(t, 4)
	w.warm(200 * time.Millisecond)
	for range 5 {
		w.send("r0")
	}
	w.SetVerdicts([]Verdict{{ID: "r0", State: VerdictSuspect, Term: 1}})
	for range 30 {
		w.serve("r1", 200*time.Millisecond)
	}
	require.Equal(t, []Finding{{ID: "r0", Kind: FindingLate, Term: 1}}, w.Findings())
}

// Without word of others a replica that is left alone for their sake is tried.
func TestDropVerdicts(t *testing.T) {
	w := newWard(t, 4)
	w.SetVerdicts([]Verdict{{ID: "r0", State: VerdictEjected, Term: 7}})
	w.DropVerdicts()
	require.Equal(t, OnTrial, w.condition("r0"))
	require.Empty(t, w.Findings(), "hearsay is no finding")
	q, b := w.trial("r0")
	b.Release()
	w.Complete(q, b.Decision, Outcome{Err: errFault, Sent: true, Fault: Failed, Usage: NoUsage})
	require.Equal(t, []Finding{{ID: "r0", Kind: FindingFailing}}, w.Findings(), "its own trial is")
	w.pass(time.Hour)
	w.Attend()
	q, b = w.trial("r0")
	w.finish(q, b)
	require.Equal(t, Warming, w.condition("r0"))
	for range 5 {
		w.fail("r1")
	}
	require.Equal(t, []Finding{{ID: "r1", Kind: FindingFailing}}, w.Findings(), "terms of another server mean nothing")
}

// Nobody who tells takes the fleet away.
func TestVerdictsKeepTheFleet(t *testing.T) {
	for n, most := range map[int]int{1: 0, 2: 1, 4: 1, 10: 3} {
		w := newWard(t, n)
		var told []Verdict
		for i := range n {
			told = append(told, Verdict{ID: fmt.Sprintf("r%d", i), State: VerdictEjected, Term: 1})
		}
		w.SetVerdicts(told)
		require.Equal(t, most, w.wards.out)
		require.NotZero(t, w.picked(10))
	}
}

// What others have found and what we have found ourselves is not more than MaxShare together; of the same replicas it is one.
func TestVerdictsBesideOurOwn(t *testing.T) {
	for want, named := range map[int][]string{3: {"r4", "r5", "r6"}, 2: {"r0", "r1"}} {
		w := newWard(t, 10)
		for _, id := range []string{"r0", "r1"} {
			for range 5 {
				w.fail(id)
			}
		}
		require.Equal(t, 2, w.wards.out)
		var told []Verdict
		for _, id := range named {
			told = append(told, Verdict{ID: id, State: VerdictEjected, Term: 1})
		}
		w.SetVerdicts(told)
		require.Equal(t, want, w.wards.out)
		for _, id := range []string{"r0", "r1"} {
			require.Equal(t, Ejected, w.condition(id))
		}
		w.SetVerdicts(nil)
		w.pass(time.Hour)
		w.Attend()
		w.SetVerdicts(told)
		require.Equal(t, want, w.wards.out, "on trial counts too")
	}
}

// Who judges nobody heeds nobody.
func TestVerdictsWhereNobodyIsEjected(t *testing.T) {
	r := connected(t, Options{}, members(3)...)
	r.SetVerdicts([]Verdict{{ID: "r0", State: VerdictEjected, Term: 1}})
	r.DropVerdicts()
	r.Attend()
	require.Empty(t, r.Findings())
	require.Equal(t, "r0", pick(t, r, new(Request)).Decision.Replica.ID)
}
