package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

const registering = `
load_interval: 10s
deployments:
  chat: {register: true, policy: {power_of_two_choices: {}}, replicas: [{id: fixed, address: "f:1"}]}`

func TestRegister(t *testing.T) {
	f := start(t, registering)
	ids := func() (all []string) {
		for _, m := range f.deploymentMembers("chat") {
			all = append(all, m.ID)
		}
		return all
	}
	beat := func(r *warmpathv1.RegisterRequest) *warmpathv1.RegisterResponse {
		t.Helper()
		a, err := f.pb.Register(soon(t), r)
		require.NoError(t, err)
		return a
	}
	a := beat(&warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Id: "r", Address: "r:1"}})
	require.EqualValues(t, 10_000, a.GetLeaseMs())
	require.EqualValues(t, 1_000, a.GetHeartbeatMs())
	require.Equal(t, []string{"fixed", "r"}, ids())
	w := f.watch(t, &warmpathv1.WatchStart{ClientId: "x", Load: true})
	require.Len(t, w.next().GetFleet().GetReplicas(), 2)
	f.settle("chat")

	// Its own report is broadcast: draining at once, figures with the next interval.
	beat(&warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Id: "r", Address: "r:1", Draining: true}})
	require.True(t, w.next().GetFleet().GetReplicas()[0].GetDraining())
	for range 5 {
		require.Equal(t, "fixed", f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: query}).GetReplica().GetId())
	}
	beat(&warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Id: "r", Address: "r:1", Instance: "second life"}})
	require.Equal(t, "second life", w.next().GetFleet().GetReplicas()[0].GetInstance())
	f.clock.advance(time.Second)
	f.tick("chat")
	w.next() // the load is all zero
	beat(&warmpathv1.RegisterRequest{
		Replica: &warmpathv1.Replica{Id: "r", Address: "r:1", Stats: map[string]float64{"queue": 3}, KvTokens: 1000, Adapters: []string{"l"}},
		Ongoing: proto.Uint32(4), QueuedTokens: proto.Uint64(900),
	})
	require.True(t, w.next().GetFleet().GetReplicas()[0].GetStats() != nil)
	f.tick("chat")
	require.Equal(t, map[uint32]replicaLoad{2: {4, 900}}, columns(w.next().GetLoad().GetLoads()))

	// Its own load counts, or the sum of the clients where that is more.
	w.report(1, true, loadOf([3]int{2, 1, 1000}))
	f.received(t, "x", 1)
	f.tick("chat")
	require.Equal(t, map[uint32]replicaLoad{2: {4, 1000}}, columns(w.next().GetLoad().GetLoads()))
	w.report(2, false, loadOf([3]int{2, 6, 10}))
	f.received(t, "x", 2)
	f.tick("chat")
	require.Equal(t, map[uint32]replicaLoad{2: {6, 900}}, columns(w.next().GetLoad().GetLoads()))
	f.clock.advance(3 * time.Second)
	f.tick("chat")
	l := w.next().GetLoad()
	require.Equal(t, map[uint32]replicaLoad{2: {6, 10}}, columns(l.GetLoads()), "no heartbeat for three seconds")
	require.Equal(t, []uint32{2}, l.GetStale())

	// A replica leaves by a call, or when its lease ends.
	beat(&warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Address: "s:1"}, LeaseMs: 500})
	require.Equal(t, []string{"fixed", "r", "s:1"}, ids())
	f.clock.advance(500 * time.Millisecond)
	f.tick("chat")
	require.Equal(t, []string{"fixed", "r"}, ids())
	beat(&warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Id: "r", Address: "r:1"}, Leaving: true})
	require.Equal(t, []string{"fixed"}, ids())

	// A replica of the config reports its own state, and stays without heartbeats.
	beat(&warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Id: "fixed", Address: "elsewhere:1", Draining: true}})
	require.True(t, f.deploymentMembers("chat")[0].Draining)
	require.Equal(t, "f:1", f.deploymentMembers("chat")[0].Address)
	f.clock.advance(time.Minute)
	f.tick("chat")
	require.Equal(t, []string{"fixed"}, ids())
	require.False(t, f.deploymentMembers("chat")[0].Draining)
}

func TestRegistrationsAreBounded(t *testing.T) {
	x := sources{config: Deployment{Register: true}, now: time.Now, roster: new(roster)}
	for i := range maxRegistered + 1 {
		_, _, err := x.register(new(warmpathv1.RegisterRequest), replicaAt(fmt.Sprint(i), "r:1"))
		require.Equal(t, i == maxRegistered, status.Code(err) == codes.ResourceExhausted, "%v", err)
	}
}

func TestRefusedRegistrations(t *testing.T) {
	f := start(t, registering)
	nan := proto.CloneOf(&warmpathv1.Replica{Address: "a:1", Stats: map[string]float64{"x": 0}})
	nan.Stats["x"] /= nan.Stats["x"]
	for want, r := range map[string]*warmpathv1.Replica{
		"replica.address: missing":         {},
		"replica.address: \"a\"":           {Address: "a"},
		"replica.id":                       {Id: "a b", Address: "a:1"},
		"replica.ranks":                    {Address: "a:1", Ranks: 1 << 31},
		"replica.weight":                   {Address: "a:1", Weight: nan.Stats["x"]},
		"replica.stats":                    nan,
		"which is more than 262144":        {Address: "a:1", Zone: strings.Repeat("z", maxReplica)},
		"replica.kv_events: \"udp://x:1\"": {Address: "a:1", KvEvents: "udp://x:1"},
	} {
		_, err := f.pb.Register(soon(t), &warmpathv1.RegisterRequest{Replica: r})
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
		require.ErrorContains(t, err, want)
	}
	other := start(t, quiet)
	_, err := other.pb.Register(soon(t), &warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Address: "a:1"}})
	require.Equal(t, codes.PermissionDenied, status.Code(err))
}

// The figures of replicas change with every heartbeat and are not logged; replicas that come or go are.
func TestTheLogHasReplicasThatComeAndGo(t *testing.T) {
	f, text := startLogged(t, "load_interval: 10s\ndeployments: {chat: {register: true}}")
	changes := func() int { return strings.Count(text.String(), `level=INFO msg="warmpath: the fleet changed"`) }
	for i := range 20 {
		for _, id := range []string{"a", "b"} {
			_, err := f.pb.Register(soon(t), &warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Id: id, Address: id + ":1", Stats: map[string]float64{"waiting": float64(i)}}})
			require.NoError(t, err)
		}
		f.tick("chat")
		f.advance(time.Second)
	}
	require.Equal(t, 2, changes(), "%s", text)
	_, err := f.pb.Register(soon(t), &warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Id: "a", Address: "a:1"}, Leaving: true})
	require.NoError(t, err)
	require.Equal(t, 3, changes(), "%s", text)
}
