package outlier_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router/state"
)

// round is longer than the time between two looks at the fleet.
const round = 101 * time.Millisecond

// host is a replica of a fleet without a Router.
type host struct {
	*outlier.Replica
	admits       atomic.Bool
	reservations atomic.Int64
	looks        atomic.Int64 // at its draining state
	rated        atomic.Int64 // looks at its rate
}

func (h *host) Reservations() int64 { return h.reservations.Load() }
func (h *host) Rate() float64       { h.rated.Add(1); return 1 }
func (h *host) Draining() bool      { h.looks.Add(1); return false }
func (h *host) Coming() bool        { return false }
func (h *host) Suspect(bool)        {}
func (h *host) Admit(ok bool)       { h.admits.Store(ok) }

// fleet is a Detector with replicas, on a clock of its own.
type fleet struct {
	*outlier.Detector
	t        *testing.T
	now      time.Time
	replicas []*host
}

func newFleet(t *testing.T, n int) *fleet {
	f := &fleet{t: t, now: time.Unix(1000, 0)}
	f.Detector = outlier.New(new(policy.Ejection), func() time.Time { return f.now })
	for range n {
		h := new(host)
		h.Replica = outlier.NewReplica(h)
		h.admits.Store(true)
		f.Join(h.Replica, "")
		f.SetConnected(h.Replica, true)
		f.replicas = append(f.replicas, h)
	}
	return f
}

func (f *fleet) pass(d time.Duration) {
	f.now = f.now.Add(d)
	f.Look(f.now)
}

func (f *fleet) is(i int, want outlier.State) {
	f.t.Helper()
	s, _ := f.State(f.replicas[i].Replica)
	require.Equal(f.t, want, s)
}

// add reports counts of a replica, as a client of the principal.
func (f *fleet) add(i int, principal string, c outlier.Counts, probe bool) {
	f.Add(f.replicas[i].Replica, principal, c, probe)
}

// call is one call of a principal that is answered or fails at once.
func (f *fleet) call(i int, principal string, fails bool) {
	var a outlier.Attempt
	r := f.replicas[i].Replica
	f.Begin(&a, r, state.AnswerMessage, 500, principal, time.Time{})
	f.pass(time.Millisecond)
	if !fails {
		f.Answered(&a)
	}
	f.End(&a)
	o := &policy.Outcome{Sent: true, FirstMessage: time.Millisecond}
	if fails {
		o = &policy.Outcome{Sent: true, Err: errors.New("it failed"), Fault: policy.Failed}
	}
	f.Ended(r, &a.Mark, o)
}

// An ejected replica comes back by a probe, and slowly; a probe that fails ejects it for twice as long.
func TestStates(t *testing.T) {
	f := newFleet(t, 4)
	for range 5 {
		f.call(0, "", true)
	}
	f.is(0, outlier.Ejected)
	require.False(t, f.replicas[0].admits.Load())
	f.pass(9 * time.Second)
	f.is(0, outlier.Ejected)
	f.pass(time.Second)
	f.is(0, outlier.HalfOpen)
	require.True(t, f.replicas[0].admits.Load())
	f.call(0, "", true)
	f.is(0, outlier.Ejected)
	f.pass(19 * time.Second)
	f.is(0, outlier.Ejected)
	f.pass(time.Second)
	f.call(0, "", false)
	f.is(0, outlier.SlowStart)
	f.replicas[0].reservations.Store(1)
	f.Begin(new(outlier.Attempt), f.replicas[0].Replica, state.AnswerUnseen, 500, "", f.now)
	require.False(t, f.replicas[0].admits.Load(), "without load of others the share is one request")
	f.pass(30 * time.Second)
	f.is(0, outlier.Healthy)
	require.True(t, f.AllHealthy())
}

// A probe whose time was read just before the ejection was over is a probe: it fails.
func TestProbeIsNotOlderThanItsState(t *testing.T) {
	f := newFleet(t, 4)
	for range 5 {
		f.call(0, "", true)
	}
	before := f.now
	f.pass(10 * time.Second)
	f.is(0, outlier.HalfOpen)
	var a outlier.Attempt
	r := f.replicas[0].Replica
	f.Begin(&a, r, state.AnswerMessage, 500, "", before)
	require.True(t, a.Probe)
	f.End(&a)
	f.Ended(r, &a.Mark, &policy.Outcome{Sent: true, Err: errors.New("it failed"), Fault: policy.Failed})
	f.is(0, outlier.Ejected)
}

// The share of a replica in slow start grows with the load of its role, also where the role changes.
func TestSlowStartByRole(t *testing.T) {
	f := newFleet(t, 3)
	for i, h := range f.replicas {
		h.reservations.Store([]int64{2, 40, 0}[i])
		f.Join(h.Replica, []string{"prefill", "decode", "prefill"}[i])
	}
	f.SetConnected(f.replicas[2].Replica, false)
	f.pass(time.Minute)
	f.SetConnected(f.replicas[2].Replica, true)
	f.is(2, outlier.SlowStart)
	admitted := func() (n int64) {
		for h := f.replicas[2]; h.admits.Load(); n++ {
			h.reservations.Store(n + 1)
			f.Begin(new(outlier.Attempt), h.Replica, state.AnswerUnseen, 500, "", f.now)
		}
		f.replicas[2].reservations.Store(0)
		return n
	}
	f.pass(29 * time.Second)
	require.EqualValues(t, 2, admitted())
	f.Join(f.replicas[2].Replica, "decode")
	f.pass(round)
	require.EqualValues(t, 39, admitted())
}

// Issue 12.38: the reports of one principal alone eject no replica while others are active; they add to the
// others' reports.
func TestOnePrincipalAlone(t *testing.T) {
	for name, answers := range map[string]bool{"the others are answered": true, "the others do not report it": false} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 4)
			for range 3600 { // seconds
				f.add(1, "good", outlier.Counts{Successes: 1}, false)
				f.add(0, "evil", outlier.Counts{Failures: 100}, true)
				f.is(0, outlier.Healthy)
				if answers {
					f.add(0, "good", outlier.Counts{Successes: 1}, false)
				}
				f.pass(time.Second)
			}
			f.add(0, "evil", outlier.Counts{Failures: 100}, true)
			f.add(0, "good", outlier.Counts{Failures: 2}, true)
			f.is(0, outlier.Ejected)
		})
	}
}

// The reports of two principals eject a replica for all clients.
func TestTwoPrincipalsAgree(t *testing.T) {
	f := newFleet(t, 4)
	f.add(0, "b", outlier.Counts{Successes: 1}, false)
	f.add(0, "a", outlier.Counts{Failures: 9}, false)
	f.add(0, "b", outlier.Counts{Failures: 1}, false)
	f.is(0, outlier.Healthy)
	f.add(0, "b", outlier.Counts{Failures: 1}, false)
	f.is(0, outlier.Ejected)
	given := f.Evidence(f.replicas[0].Replica)
	require.Len(t, given, 2)
	require.Positive(t, given["a"])
	require.Zero(t, given["c"])
}

// The reports of the only active principal eject a replica, and its probes count.
func TestOnlyPrincipal(t *testing.T) {
	f := newFleet(t, 4)
	for length := 10 * time.Second; length < 5*time.Minute; length *= 2 {
		f.add(0, "a", outlier.Counts{Failures: 5}, true)
		f.is(0, outlier.Ejected)
		f.pass(length - time.Second)
		f.is(0, outlier.Ejected)
		f.pass(time.Second)
		f.is(0, outlier.HalfOpen)
	}
	f.add(0, "a", outlier.Counts{Successes: 1}, true)
	f.is(0, outlier.SlowStart)
}

// Where the share of ejected replicas is full, a round looks at each replica once, not once for every other. A
// replica that leaves makes room for another.
func TestShareIsFull(t *testing.T) {
	f := newFleet(t, 1000)
	ejected := func() (n int) {
		for _, h := range f.replicas {
			if s, _ := f.State(h.Replica); s == outlier.Ejected {
				n++
			}
		}
		return n
	}
	for i := range 900 {
		f.add(i, "", outlier.Counts{Failures: 9}, false)
	}
	f.pass(round)
	full := ejected()
	require.Less(t, full, 900)
	looks := func() (n int64) {
		for _, h := range f.replicas {
			n += h.looks.Swap(0)
		}
		return n
	}
	looks()
	f.pass(round)
	require.Zero(t, looks())
	for i := range 10 {
		f.Leave(f.replicas[i].Replica)
	}
	f.replicas = f.replicas[10:]
	f.pass(round)
	require.Equal(t, full*990/1000, ejected())
}

// Where all replicas are late, a round computes the usual time once, not once for each of them.
func TestAllLate(t *testing.T) {
	f := newFleet(t, 1000)
	attempts := make([]outlier.Attempt, len(f.replicas))
	for i, h := range f.replicas {
		f.call(i, "", false)
		f.Begin(&attempts[i], h.Replica, state.AnswerMessage, 500, "", time.Time{})
	}
	for _, h := range f.replicas {
		h.rated.Store(0)
	}
	f.pass(time.Hour)
	for i, h := range f.replicas {
		require.True(t, h.Suspected())
		require.LessOrEqual(t, h.rated.Load(), int64(2))
		f.End(&attempts[i])
	}
}

// A call that waits counts again after each answer of the replica to another call.
func TestAnotherCallIsAnswered(t *testing.T) {
	f := newFleet(t, 4)
	for range 32 {
		for i := range f.replicas {
			f.call(i, "", false)
		}
	}
	var stuck outlier.Attempt
	f.Begin(&stuck, f.replicas[0].Replica, state.AnswerMessage, 500, "", time.Time{})
	hang := func(seconds int) {
		for range seconds {
			f.pass(time.Second)
			f.call(1, "", false)
			f.call(2, "", false)
		}
	}
	for range 4 {
		hang(22)
		f.is(0, outlier.Healthy)
		f.call(0, "", false)
	}
	hang(24)
	f.is(0, outlier.Healthy)
	hang(2)
	f.is(0, outlier.Ejected)
}

// Late calls are evidence only where other replicas answer meanwhile.
func TestLateCounts(t *testing.T) {
	f := newFleet(t, 4)
	for i := range f.replicas {
		f.add(i, "a", outlier.Counts{Late: 5}, false)
	}
	for i := range f.replicas {
		f.is(i, outlier.Healthy)
	}
	f = newFleet(t, 4)
	f.add(0, "a", outlier.Counts{Late: 5}, false)
	f.is(0, outlier.Healthy)
	f.add(1, "a", outlier.Counts{Successes: 1}, false)
	f.pass(round)
	f.is(0, outlier.Ejected)
}

// A client reports each piece of evidence once to a server.
func TestTake(t *testing.T) {
	f := newFleet(t, 4)
	take := func(want outlier.Counts) {
		t.Helper()
		require.Equal(t, want, f.Take(f.replicas[0].Replica))
	}
	take(outlier.Counts{})
	f.call(0, "", false)
	f.call(0, "", true)
	f.call(0, "", true)
	take(outlier.Counts{Successes: 1, Failures: 2})
	take(outlier.Counts{})
	for range 3 {
		f.call(0, "", true)
	}
	f.is(0, outlier.Ejected)
	take(outlier.Counts{Failures: 3})
	f.pass(10 * time.Second)
	f.call(0, "", true)
	take(outlier.Counts{Failures: 1})
	f.pass(20 * time.Second)
	f.call(0, "", false)
	take(outlier.Counts{Successes: 1})
}

// An ejection by the server is not reported back. It ends in slow start, when the server clears it or its probe
// here is answered; an ejection by own calls goes on by its own rules.
func TestRemote(t *testing.T) {
	f := newFleet(t, 8)
	r := f.replicas[0].Replica
	follow := func(s outlier.State) { f.Follow(map[*outlier.Replica]outlier.State{r: s}) }
	follow(outlier.Ejected)
	f.is(0, outlier.Ejected)
	require.False(t, f.replicas[0].admits.Load())
	require.Equal(t, outlier.Counts{}, f.Take(r))
	f.pass(time.Hour)
	f.is(0, outlier.Ejected)
	f.Follow(nil)
	f.is(0, outlier.SlowStart)

	follow(outlier.HalfOpen)
	require.True(t, f.replicas[0].admits.Load())
	f.call(0, "", false)
	f.is(0, outlier.SlowStart)
	require.Equal(t, outlier.Counts{Successes: 1}, f.Take(r))

	follow(outlier.HalfOpen)
	f.call(0, "", true) // its probe
	f.is(0, outlier.Ejected)
	require.Equal(t, outlier.Counts{Failures: 1}, f.Take(r))
	f.Follow(nil)
	f.is(0, outlier.Ejected)
	f.pass(10 * time.Second)
	f.is(0, outlier.HalfOpen)
	f.call(0, "", false)
	f.pass(time.Hour)

	follow(outlier.Ejected) // after an hour the earlier ejection does not count
	follow(outlier.HalfOpen)
	f.call(0, "", true)
	f.is(0, outlier.Ejected)
	f.pass(10 * time.Second)
	f.is(0, outlier.HalfOpen)
	f.call(0, "", false)
	f.pass(time.Hour)

	follow(outlier.Ejected)
	f.Inherit() // the server is lost
	f.is(0, outlier.HalfOpen)
	f.Follow(nil)
	f.is(0, outlier.HalfOpen)
	f.call(0, "", false)
	f.is(0, outlier.SlowStart)
}

// All methods may be called by many goroutines.
func TestManyGoroutines(t *testing.T) {
	var clock atomic.Int64
	d := outlier.New(&policy.Ejection{Failures: 2, SlowStart: policy.Duration(time.Second), BaseTime: policy.Duration(time.Second)}, func() time.Time { return time.Unix(1000, clock.Add(1e6)) })
	all := make([]*host, 8)
	for i := range all {
		all[i] = new(host)
		all[i].Replica = outlier.NewReplica(all[i])
		d.Join(all[i].Replica, "")
		d.SetConnected(all[i].Replica, true)
	}
	var g sync.WaitGroup
	for worker := range 4 {
		g.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(worker), 1))
			for range 2000 {
				h := all[rnd.IntN(len(all))]
				r, principal := h.Replica, fmt.Sprint("p", rnd.IntN(3))
				var a outlier.Attempt
				d.Begin(&a, r, state.Answer(rnd.IntN(3)), 100, principal, time.Time{})
				switch rnd.IntN(8) {
				case 0:
					d.Add(r, principal, outlier.Counts{Failures: 3}, true)
				case 1:
					d.Add(r, principal, outlier.Counts{Successes: 3}, true)
				case 2:
					d.Take(r)
				case 3:
					d.Follow(map[*outlier.Replica]outlier.State{r: outlier.State(rnd.IntN(2)) * outlier.Ejected})
				case 4:
					d.SetConnected(r, rnd.IntN(2) == 0)
				case 5:
					d.Look(time.Unix(1000, clock.Load()))
				default:
					d.Answered(&a)
				}
				d.End(&a)
				d.Ended(r, &a.Mark, &policy.Outcome{Sent: true, Err: context.Canceled, Fault: policy.Fault(rnd.IntN(5))})
				d.State(r)
				d.Stats()
			}
		})
	}
	g.Wait()
	d.Follow(nil)
	for _, h := range all {
		d.Leave(h.Replica)
	}
	require.True(t, d.AllHealthy())
}

// A replica that reports that it does not serve is out, beside those that calls have found, and whatever these show. It
// is back once it serves, slowly if it was away for long or was starting slowly, and forgets the report with its
// connection.
func TestReportedHealth(t *testing.T) {
	f := newFleet(t, 4)
	all := f.replicas
	is := func(h *host, want outlier.State, why outlier.Cause) {
		t.Helper()
		state, cause := f.State(h.Replica)
		require.Equal(t, want, state)
		require.Equal(t, why, cause)
	}
	for _, h := range all[:3] {
		f.SetServing(h.Replica, false)
		f.SetServing(h.Replica, false)
		is(h, outlier.Ejected, outlier.CauseHealth)
		require.False(t, h.admits.Load())
	}
	require.EqualValues(t, 3, f.Stats().Ejections[outlier.CauseHealth])
	f.pass(time.Hour)
	f.Look(f.now)
	f.Ended(all[0].Replica, &state.Mark{Picked: f.now, Answer: 1}, &policy.Outcome{Sent: true})
	f.Follow(nil)
	is(all[0], outlier.Ejected, outlier.CauseHealth)
	var a outlier.Attempt
	f.Begin(&a, all[0].Replica, state.AnswerMessage, 1, "", f.now)
	require.False(t, a.Probe)
	f.End(&a)

	f.SetServing(all[0].Replica, true)
	is(all[0], outlier.SlowStart, outlier.NoCause)
	f.SetServing(all[0].Replica, false)
	f.SetServing(all[0].Replica, true)
	is(all[0], outlier.SlowStart, outlier.NoCause)
	f.SetConnected(all[1].Replica, false)
	is(all[1], outlier.Healthy, outlier.NoCause)
	f.pass(time.Minute)
	f.Look(f.now)
	is(all[0], outlier.Healthy, outlier.NoCause)
	f.SetServing(all[0].Replica, false)
	f.SetServing(all[0].Replica, true)
	is(all[0], outlier.Healthy, outlier.NoCause)

	f.SetServing(all[0].Replica, false)
	for range 5 {
		f.Ended(all[3].Replica, &state.Mark{Picked: f.now, Answer: 1}, &policy.Outcome{Sent: true, Fault: policy.Failed, Err: context.Canceled})
	}
	is(all[3], outlier.Healthy, outlier.NoCause) // it is the only one that serves
	f.SetServing(all[2].Replica, true)
	f.Ended(all[3].Replica, &state.Mark{Picked: f.now, Answer: 1}, &policy.Outcome{Sent: true, Fault: policy.Failed, Err: context.Canceled})
	is(all[3], outlier.Ejected, outlier.CauseFault)
}
