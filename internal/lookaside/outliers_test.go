package lookaside

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	_ "github.com/warmpath/warmpath/internal/builtin"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// judging is a Watch with one Router, without a server.
func judging(t *testing.T) (*Watch, *router.Router) {
	r, err := router.FromConfig(&policy.Config{}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	w := newWatch(Options{Timing: defaultTiming})
	w.view.members.named = make(map[uint32]replica)
	var members []router.Member
	for i, id := range []string{"a", "b", "c", "d"} {
		w.view.members.named[uint32(i+1)] = replica{Attributes: policy.Attributes{ID: id}}
		members = append(members, router.Member{Attributes: policy.Attributes{ID: id}})
	}
	r.Fleet.Set(members)
	r.Fleet.Connect()
	t.Cleanup(w.Attach(r))
	return w, r
}

func stateOf(r *router.Router, id string) outlier.State {
	s, _ := r.Outliers().State(r.Outlier(r.View().ByID(id)))
	return s
}

func ejecting(replica uint32, probe bool) *warmpathv1.OutlierUpdate {
	return &warmpathv1.OutlierUpdate{Replicas: []*warmpathv1.Outlier{{Replica: replica, Probe: probe}, {Replica: 77}}}
}

// An ejection by the server reaches the Routers, also later ones, and ends when the server clears it.
func TestOutliersReachRouters(t *testing.T) {
	w, r := judging(t)
	w.view.takeOutliers(ejecting(2, false))
	require.Equal(t, outlier.Ejected, stateOf(r, "b"))
	other, err := router.FromConfig(&policy.Config{}, nil)
	require.NoError(t, err)
	defer other.Close()
	other.Fleet.Set([]router.Member{{Attributes: policy.Attributes{ID: "a"}}, {Attributes: policy.Attributes{ID: "b"}}})
	other.Fleet.Connect()
	detach := w.Attach(other)
	require.Equal(t, outlier.Ejected, stateOf(other, "b"))
	detach()
	require.Equal(t, outlier.HalfOpen, stateOf(other, "b"))
	w.view.takeOutliers(ejecting(2, true))
	require.Equal(t, outlier.HalfOpen, stateOf(r, "b"))
	w.view.takeOutliers(new(warmpathv1.OutlierUpdate))
	require.Equal(t, outlier.SlowStart, stateOf(r, "b"))
}

// A replica that was ejected by a server that ended, sends nothing, or restarted is probed.
func TestOutliersOfALostServer(t *testing.T) {
	for name, lose := range map[string]func(*Watch){
		"silent":  func(w *Watch) { w.view.fade(time.Now()) },
		"another": func(w *Watch) { w.view.begin("another", time.Now()) },
	} {
		t.Run(name, func(t *testing.T) {
			w, r := judging(t)
			w.view.takeOutliers(ejecting(1, false))
			require.Equal(t, outlier.Ejected, stateOf(r, "a"))
			lose(w)
			require.Equal(t, outlier.HalfOpen, stateOf(r, "a"))
			require.Nil(t, w.view.outcomes(), "it is no evidence of own calls")
			if name == "another" { // its first message ejects nothing
				w.view.takeOutliers(new(warmpathv1.OutlierUpdate))
				require.Equal(t, outlier.HalfOpen, stateOf(r, "a"), "its probe brings it back")
			}
		})
	}
}

// A silent server that sends again has cleared no ejection: its ejected replicas are probed.
func TestOutliersOfASilentServer(t *testing.T) {
	w, r := judging(t)
	w.view.takeOutliers(ejecting(1, false))
	w.view.fade(time.Now())
	w.view.fade(time.Now())
	require.Equal(t, outlier.HalfOpen, stateOf(r, "a"))
	w.view.take(new(warmpathv1.WatchReplicasResponse), false)
	require.Equal(t, outlier.HalfOpen, stateOf(r, "a"))
	w.view.take(&warmpathv1.WatchReplicasResponse{Outliers: new(warmpathv1.OutlierUpdate)}, false)
	require.Equal(t, outlier.HalfOpen, stateOf(r, "a"))
	w.view.take(&warmpathv1.WatchReplicasResponse{Outliers: ejecting(2, false)}, false)
	require.Equal(t, outlier.Healthy, stateOf(r, "b"), "one of four may be ejected, and one is")
}

// Outcomes are counted once, under the server's numbers.
func TestOutcomesAreReported(t *testing.T) {
	w, r := judging(t)
	for range 5 {
		q, b := new(policy.Request), new(router.Reservation)
		q.Pin = "c"
		require.NoError(t, r.Reserve(t.Context(), q, b, router.How{NoWait: true}))
		b.Release()
		r.Complete(q, b.Decision, policy.Outcome{Err: errSilent, Sent: true, Fault: policy.Failed})
	}
	want := &warmpathv1.OutcomeReport{Replicas: []*warmpathv1.ReplicaOutcomes{{Replica: 3, Failures: 5}}}
	require.True(t, proto.Equal(want, w.view.outcomes()))
	require.Nil(t, w.view.outcomes())
}
