package server

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

func adopting(more string) string {
	return `
load_interval: 10s
deployments:
  chat:
    policy: {consistent_hash: {}}
    replicas: [{id: a, address: "10.0.0.1:1"}, {id: b, address: "10.0.0.2:1"}, {id: c, address: "10.0.0.3:1"}]
` + more
}

// reasons picks for a hundred sessions, and counts the reasons.
func (f *fixture) reasons(t *testing.T) map[string]int {
	t.Helper()
	all := make(map[string]int)
	for i := range 100 {
		a := f.choose(t, &warmpathv1.ChooseReplicaRequest{Key: &warmpathv1.RequestKey{Session: fmt.Sprint(i)}})
		all[a.GetDecision().GetReason()]++
	}
	return all
}

// Changes of mode, percentage and kill switch come into force and are pushed; reservations stay.
func TestAdoptionChanges(t *testing.T) {
	f := start(t, adopting(""))
	d := f.deployment("chat")
	before, version := d.hosted.Load().router, d.pushed.GetVersion()
	f.choose(t, &warmpathv1.ChooseReplicaRequest{Pinned: "a", Mode: warmpathv1.PickMode_PICK_MODE_RESERVE})
	require.Equal(t, map[string]int{"ring": 100}, f.reasons(t))
	for i, c := range []struct {
		more, pushed string
		policy       string
		ring         [2]int // how many of a hundred, at least and at most
	}{
		{"    mode: central", `"mode":"central"`, "consistent_hash", [2]int{100, 100}},
		{"    percentage: 30", `"percentage":30`, "consistent_hash", [2]int{15, 45}},
		{"    percentage: off", `"percentage":"off"`, "round_robin", [2]int{0, 0}},
		{"", `"consistent_hash"`, "consistent_hash", [2]int{100, 100}},
	} {
		require.NoError(t, f.Update(parse(t, adopting(c.more))))
		require.Same(t, before, d.hosted.Load().router, "the Router, and its reservations, were replaced")
		require.Equal(t, version+uint64(i)+1, d.pushed.GetVersion())
		require.Contains(t, d.pushed.GetServiceConfig(), c.pushed)
		got := f.reasons(t)
		require.GreaterOrEqual(t, got["ring"], c.ring[0], got)
		require.LessOrEqual(t, got["ring"], c.ring[1], got)
		require.Equal(t, 100, got["ring"]+got["round_robin"])
		a := f.choose(t, &warmpathv1.ChooseReplicaRequest{Pinned: "a", Mode: warmpathv1.PickMode_PICK_MODE_QUERY})
		require.Equal(t, c.policy, a.GetDecision().GetPolicy())
	}
	require.NoError(t, f.Update(parse(t, adopting("    shadow_policy: {round_robin: {}}"))))
	require.NotSame(t, before, d.hosted.Load().router)
	f.reasons(t)
	q, b := new(policy.Request), new(router.Reservation)
	require.NoError(t, d.hosted.Load().router.Reserve(t.Context(), q, b, router.How{NoWait: true}))
	b.Release()
	name, _, _, ok := router.Shadow(q)
	require.True(t, ok)
	require.Equal(t, "round_robin", name)
}

// The percentage is applied once: a client that has applied it is answered by the policy.
func TestAdoptedStream(t *testing.T) {
	f := start(t, adopting("    percentage: 0"))
	require.Equal(t, map[string]int{"round_robin": 100}, f.reasons(t))
	stream, err := f.pb.ChooseReplicas(metadata.AppendToOutgoingContext(soon(t), warmpathv1.MetadataAdopted, "1"))
	require.NoError(t, err)
	for i := range 20 {
		require.NoError(t, stream.Send(&warmpathv1.ChooseReplicasRequest{
			Number: uint64(i + 1), Choose: &warmpathv1.ChooseReplicaRequest{Key: &warmpathv1.RequestKey{Session: fmt.Sprint(i)}},
		}))
		a, err := stream.Recv()
		require.NoError(t, err)
		require.Equal(t, "ring", a.GetChosen().GetDecision().GetReason())
	}
	require.NoError(t, stream.CloseSend())
}
