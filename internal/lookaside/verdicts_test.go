package lookaside

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/fleet"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/routing"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// judging is a Watch with one Router, without a server.
func judging(t *testing.T) (*Watch, *routing.Router) {
	r, err := (&policy.Config{}).NewRouter(nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	w := &Watch{o: Options{Timing: Timing{}.withDefaults()}, ledger: newLedger(), reserved: newReserved(), resync: make(chan struct{}, 1)}
	w.members.named = make(map[uint32]Replica)
	var members []routing.Member
	for i, id := range []string{"a", "b", "c", "d"} {
		w.members.named[uint32(i+1)] = Replica{Replica: fleet.Replica{ID: id}}
		members = append(members, routing.Member{Attributes: routing.Attributes{ID: id}})
	}
	r.SetFleet(members)
	r.Connect()
	t.Cleanup(w.Attach(r))
	return w, r
}

func condition(r *routing.Router, id string) routing.Condition {
	c, _ := r.Condition(r.View().ByID(id))
	return c
}

func verdictOn(replica uint32, s warmpathv1.VerdictState) *warmpathv1.VerdictUpdate {
	return &warmpathv1.VerdictUpdate{Verdicts: []*warmpathv1.Verdict{
		{Replica: replica, State: s, Term: 4}, {Replica: 77, State: s, Term: 1},
	}}
}

// Verdicts reach the Routers, also those that come later, and end when the server says so.
func TestVerdictsReachRouters(t *testing.T) {
	w, r := judging(t)
	w.takeVerdicts(verdictOn(2, warmpathv1.VerdictState_VERDICT_STATE_EJECTED))
	require.Equal(t, routing.Ejected, condition(r, "b"))
	other, err := (&policy.Config{}).NewRouter(nil)
	require.NoError(t, err)
	defer other.Close()
	other.SetFleet([]routing.Member{{Attributes: routing.Attributes{ID: "a"}}, {Attributes: routing.Attributes{ID: "b"}}})
	other.Connect()
	detach := w.Attach(other)
	require.Equal(t, routing.Ejected, condition(other, "b"))
	detach()
	require.Equal(t, routing.OnTrial, condition(other, "b"))
	w.takeVerdicts(verdictOn(2, warmpathv1.VerdictState_VERDICT_STATE_WELL))
	require.Equal(t, routing.Warming, condition(r, "b"))
}

// Whom a server spoke of that is gone, silent, or another one now, is tried.
func TestVerdictsOfALostServer(t *testing.T) {
	for name, lose := range map[string]func(*Watch){
		"silent":  func(w *Watch) { w.fade(time.Now()) },
		"another": func(w *Watch) { w.begin("another", time.Now()) },
	} {
		t.Run(name, func(t *testing.T) {
			w, r := judging(t)
			w.takeVerdicts(verdictOn(1, warmpathv1.VerdictState_VERDICT_STATE_SUSPECT))
			require.Equal(t, routing.Ejected, condition(r, "a"))
			lose(w)
			require.Equal(t, routing.OnTrial, condition(r, "a"))
			require.Empty(t, w.findings(), "it is no finding of ours")
		})
	}
}

// A server that was silent and speaks again has not taken anything back: what it says anew is only what has changed.
func TestVerdictsOfAServerThatWasSilent(t *testing.T) {
	w, r := judging(t)
	w.takeVerdicts(verdictOn(1, warmpathv1.VerdictState_VERDICT_STATE_EJECTED))
	w.fade(time.Now())
	w.fade(time.Now())
	require.Equal(t, routing.OnTrial, condition(r, "a"))
	w.take(new(warmpathv1.WatchReplicasResponse), false)
	require.Equal(t, routing.Ejected, condition(r, "a"))
	w.take(&warmpathv1.WatchReplicasResponse{Verdicts: new(warmpathv1.VerdictUpdate)}, false)
	require.Equal(t, routing.Warming, condition(r, "a"))
}

// What a Router finds is told under the server's numbers.
func TestFindingsAreNumbered(t *testing.T) {
	w, r := judging(t)
	for range 5 {
		q, b := new(routing.Request), new(routing.Booking)
		q.Pin = "c"
		require.NoError(t, r.Pick(t.Context(), q, b))
		b.Release()
		r.Complete(q, b.Decision, routing.Outcome{Err: errSilent, Sent: true, Fault: routing.Failed})
	}
	all := w.findings()
	require.Len(t, all, 1)
	require.EqualValues(t, 3, all[0].GetReplica())
	require.Equal(t, warmpathv1.FindingKind_FINDING_KIND_FAILING, all[0].GetKind())
	delete(w.members.named, 3)
	require.Empty(t, w.findings())
}
