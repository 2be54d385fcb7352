package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

func (f *fixture) status(t testing.TB, deployment string) *warmpathv1.DeploymentStatus {
	t.Helper()
	a, err := warmpathv1.NewStatusServiceClient(f.conn).GetStatus(soon(t), &warmpathv1.GetStatusRequest{Deployment: deployment})
	require.NoError(t, err)
	require.Equal(t, f.incarnation, a.GetIncarnation())
	require.Len(t, a.GetDeployments(), 1)
	return a.GetDeployments()[0]
}

// A replica has its role in the status, and the reason why there are no KV events, also before the first
// connection.
func TestStatusOfARole(t *testing.T) {
	f := start(t, `
deployments:
  chat:
    policy: {kv_aware: {}}
    kv_events: "grpc:vllm"
    replicas: [{id: a, address: "127.0.0.1:1", role: decode, pair: p}]
`)
	r := f.status(t, "chat").GetReplicas()[0]
	require.Equal(t, "decode", r.GetRole())
	require.Zero(t, r.GetEvents().GetConnected())
	require.Contains(t, r.GetEvents().GetProblem(), "not been connected yet")
}

func TestStatus(t *testing.T) {
	f := start(t, `
load_interval: 10s
deployments:
  chat:
    policy: {kv_aware: {}}
    register: true
    max_ongoing_requests: 2
    replicas: [{id: a, address: "10.0.0.1:1"}, {id: b, address: "10.0.0.2:1", draining: true}, {id: c, address: "10.0.0.3:1", max_ongoing_requests: 1}]
`)
	reserve := &warmpathv1.ChooseReplicaRequest{Mode: warmpathv1.PickMode_PICK_MODE_RESERVE, Pinned: "c"}
	f.choose(t, reserve)
	_, err := f.pb.ChooseReplica(soon(t), reserve)
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	f.choose(t, &warmpathv1.ChooseReplicaRequest{Key: &warmpathv1.RequestKey{Prompt: tokens(4000)}})
	_, err = f.pb.Register(soon(t), &warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Id: "d", Address: "10.0.0.4:1", KvTokens: 99}})
	require.NoError(t, err)
	f.tick("chat")

	d := f.status(t, "chat")
	require.Equal(t, "kv_aware", d.GetPolicy())
	states, ongoing := map[string]string{}, uint32(0)
	for _, r := range d.GetReplicas() {
		states[r.GetId()] = r.GetState()
		ongoing += r.GetOngoing()
	}
	require.Equal(t, map[string]string{"a": "ready", "b": "draining", "c": "full", "d": "ready"}, states)
	require.Equal(t, uint32(2), ongoing)
	require.Equal(t, uint32(2), d.GetReservations())
	require.EqualValues(t, 99, d.GetReplicas()[3].GetKvTokens())
	require.EqualValues(t, 1, d.GetReplicas()[2].GetMaxOngoingRequests())
	counts := map[string]uint64{}
	for _, c := range d.GetDecisions() {
		counts[c.GetReason()] = c.GetCount()
	}
	require.Equal(t, map[string]uint64{string(policy.ReasonPinned): 1, string(policy.ReasonRendezvousSpill): 1}, counts)
	require.Equal(t, int32(codes.ResourceExhausted), d.GetFailures()[0].GetCode())
	require.Positive(t, d.GetIndex().GetBlocks())
	require.Positive(t, d.GetIndex().GetBytes())

	f.advance(2 * time.Minute) // the reservation's lease is over, and so is the registration's
	f.tick("chat")
	d = f.status(t, "chat")
	require.EqualValues(t, 1, d.GetReservationsExpired())
	require.EqualValues(t, 1, d.GetRegistrationsExpired())
	require.Zero(t, d.GetReservations())
	require.Len(t, d.GetReplicas(), 3)

	_, err = warmpathv1.NewStatusServiceClient(f.conn).GetStatus(soon(t), &warmpathv1.GetStatusRequest{Deployment: "none"})
	require.Equal(t, codes.NotFound, status.Code(err))
}

// The updates sent to watchers are counted.
func TestStatusCountsTheBroadcast(t *testing.T) {
	f := start(t, quiet)
	w := f.watch(t, &warmpathv1.WatchStart{ClientId: "w", Load: true})
	w.next()
	require.Eventually(t, func() bool {
		d := f.status(t, "")
		return d.GetWatchers() == 1 && d.GetBroadcastMessages() == 1 && d.GetBroadcastBytes() > 50
	}, 30*time.Second, time.Millisecond)
}

// The status compares predicted with reported cached tokens, and the shadow policy with the one in force.
func TestStatusCompares(t *testing.T) {
	f := start(t, `
deployments:
  chat:
    policy: {kv_aware: {}}
    shadow_policy: {round_robin: {}}
    replicas: [{id: a, address: "10.0.0.1:1"}, {id: b, address: "10.0.0.2:1"}]
`)
	d := f.status(t, "chat")
	require.Nil(t, d.GetCachedTokens())
	require.Equal(t, "round_robin", d.GetShadow().GetPolicy())
	require.Zero(t, d.GetShadow().GetDecisions())
	var reserved []string
	var predicted, matched uint64
	for range 4 {
		a := f.choose(t, &warmpathv1.ChooseReplicaRequest{
			Mode: warmpathv1.PickMode_PICK_MODE_RESERVE, Key: &warmpathv1.RequestKey{Prompt: tokens(2048)},
		})
		reserved = append(reserved, a.GetReservation().GetId())
		predicted += uint64(a.GetDecision().GetMatchedTokens())
	}
	for i, id := range reserved {
		o := &warmpathv1.Outcome{Sent: true, PromptTokens: new(uint32(2048)), CachedTokens: new(uint32(1000))}
		if i == 0 {
			o.CachedTokens = nil // it reports no usage
		}
		_, err := f.pb.ReportLife(soon(t), &warmpathv1.ReportLifeRequest{Lives: []*warmpathv1.LifeReport{
			{Reservation: id, Stage: warmpathv1.LifeStage_LIFE_STAGE_RELEASED, Outcome: o}}})
		require.NoError(t, err)
	}
	d = f.status(t, "chat")
	require.EqualValues(t, 3*2048, d.GetCachedTokens().GetPrompt())
	require.EqualValues(t, 3*1000, d.GetCachedTokens().GetMeasured())
	require.Equal(t, predicted, d.GetCachedTokens().GetPredicted(), "the first found nothing cached")
	require.Positive(t, predicted)
	matched = d.GetShadow().GetMatchedTokens()
	require.EqualValues(t, 4, d.GetShadow().GetDecisions())
	require.EqualValues(t, 2, d.GetShadow().GetDiffering(), "round robin uses each of two replicas twice")
	require.Equal(t, predicted, d.GetShadow().GetActualMatchedTokens())
	require.LessOrEqual(t, matched, predicted)
}

// A custom policy with a new reason for each request fills no table.
func TestDecisionsAreBounded(t *testing.T) {
	n := tally{decisions: make(map[decided]uint64)}
	for i := range 10 * maxKinds {
		n.decided("p", new(policy.Request), &policy.Decision{Reason: policy.Reason(time.Duration(i).String())})
	}
	all, _ := n.counts()
	require.LessOrEqual(t, len(all), maxKinds+1)
	require.Equal(t, string(otherReason), all[0].GetReason())
	require.EqualValues(t, 9*maxKinds, all[0].GetCount())
}

// The status has the evidence against a replica, from checks and from calls, with its time and cause, while it lasts.
func TestStatusHasTheEvidence(t *testing.T) {
	f := start(t, strings.Replace(fourReplicas, "deployments:", "load_interval: 10s\ndeployments:", 1))
	d := f.deployment("chat")
	show := func(principal string, c outlier.Counts) {
		router := d.hosted.Load().router
		router.Outliers().Add(router.Outlier(router.View().ByID("r3")), principal, outlier.Counts{Successes: 1}, false)
		router.Outliers().Add(router.Outlier(router.View().ByID("r2")), principal, c, false)
		f.tick("chat")
	}
	shown := func() map[string]string {
		t.Helper()
		all := make(map[string]string)
		for _, r := range f.status(t, "chat").GetReplicas() {
			text := r.GetState()
			for _, h := range r.GetHealth() {
				text += fmt.Sprintf("; %s: %s %dms %s (%d)", h.GetBy(), h.GetState(), h.GetForMs(), h.GetWhy(), h.GetPrincipals())
			}
			all[r.GetId()] = text
		}
		return all
	}
	fine := map[string]string{"r1": "ready", "r2": "ready", "r3": "ready", "r4": "ready"}
	require.Equal(t, fine, shown())

	show("", outlier.Counts{Late: 5})
	f.advance(2 * time.Second)
	require.Equal(t, "ejected; calls: ejected 2000ms first messages are late, or do not come (0)", shown()["r2"])
	found(d, "r2")
	require.Equal(t, "not_serving; check: not_serving 1ms NOT_SERVING (0); calls: ejected 2000ms first messages are late, or do not come (0)", shown()["r2"])

	for id := range fine { // none serves: all stay in use, and the status has it
		found(d, id)
	}
	require.Equal(t, "not_serving; check: not_serving 1ms NOT_SERVING (0)", shown()["r1"])
	for _, m := range d.roster.order {
		require.False(t, m.Draining)
	}
	for id := range fine {
		d.update(func(x *sources) bool { return x.checked(x.roster.byID[id].Attributes, nil) })
	}
	f.advance(time.Minute)
	f.tick("chat")
	require.Equal(t, "ejected; calls: half_open 62000ms first messages are late, or do not come (0)", shown()["r2"])
	router := d.hosted.Load().router
	router.Outliers().Add(router.Outlier(router.View().ByID("r2")), "", outlier.Counts{Successes: 1}, true)
	f.tick("chat")
	require.Equal(t, fine, shown())
}
