package server

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A server without clients marks all load as stale, from the first message to the end of an interval in which all
// clients can have reported. For its own picks a replica with unknown load counts as the mean of the rest.
func TestClientsComeOver(t *testing.T) {
	f := start(t, `
load_interval: 1s
deployments:
  chat:
    policy: {kv_aware: {}}
    replicas: [{id: a, address: "10.0.0.1:1"}, {id: b, address: "10.0.0.2:1"}]
    register: true
`)
	_, err := f.pb.Register(soon(t), &warmpathv1.RegisterRequest{
		Replica: &warmpathv1.Replica{Id: "c", Address: "c:1"}, Ongoing: proto.Uint32(6), QueuedTokens: proto.Uint64(600), LeaseMs: 60_000,
	})
	require.NoError(t, err)
	d := f.deployment("chat")
	own := func() (all [][2]int64) {
		for _, id := range []string{"a", "b", "c"} {
			n, tokens := d.hosted.Load().router.View().ByID(id).PeerLoad()
			all = append(all, [2]int64{int64(n), tokens})
		}
		return all
	}
	f.tick("chat")
	one := f.watch(t, &warmpathv1.WatchStart{ClientId: "one", Load: true})
	l := one.next().GetLoad()
	require.True(t, l.GetStaleSet())
	require.Equal(t, []uint32{1, 2}, l.GetStale(), "c reports its own load")
	one.report(1, true, loadOf([3]int{1, 9, 10}))
	f.received(t, "one", 1)
	f.clock.advance(time.Second / 2)
	two := f.watch(t, &warmpathv1.WatchStart{ClientId: "two", Load: true})
	require.Equal(t, []uint32{1, 2}, two.next().GetLoad().GetStale())
	f.tick("chat")
	l = one.next().GetLoad()
	require.EqualValues(t, 1, l.GetCounted())
	require.Equal(t, []uint32{1, 2}, l.GetStale(), "two has yet to report")
	require.Equal(t, [][2]int64{{9, 600}, {6, 600}, {6, 600}}, own())

	two.next()
	two.report(1, true, loadOf([3]int{1, 1, 1}, [3]int{2, 1, 1}))
	f.received(t, "two", 1)
	f.clock.advance(time.Second / 2)
	f.tick("chat")
	l = two.next().GetLoad()
	require.True(t, l.GetStaleSet())
	require.Empty(t, l.GetStale())
	require.Equal(t, map[uint32]replicaLoad{1: {10, 11}, 2: {1, 1}}, columns(l.GetLoads()))
	require.Equal(t, [][2]int64{{10, 11}, {1, 1}, {6, 600}}, own())

	three := f.watch(t, &warmpathv1.WatchStart{ClientId: "three", Load: true})
	require.Empty(t, three.next().GetLoad().GetStale(), "one more client changes nothing")
}

// When clients come over, a replica that has stopped to report counts as one that never did.
func TestClientsComeOverToTheSilent(t *testing.T) {
	f := start(t, `
load_interval: 1s
deployments: {chat: {policy: {kv_aware: {}}, replicas: [{id: a, address: "10.0.0.1:1"}], register: true}}
`)
	for _, id := range []string{"b", "c"} {
		_, err := f.pb.Register(soon(t), &warmpathv1.RegisterRequest{
			Replica: &warmpathv1.Replica{Id: id, Address: id + ":1"}, Ongoing: proto.Uint32(6), QueuedTokens: proto.Uint64(600), LeaseMs: 60_000,
		})
		require.NoError(t, err)
		f.clock.advance(2 * time.Second)
	}
	f.tick("chat")
	one := f.watch(t, &warmpathv1.WatchStart{ClientId: "one", Load: true})
	require.Equal(t, []uint32{1, 2}, one.next().GetLoad().GetStale(), "b has no report any more, c still has one")
	f.tick("chat")
	n, tokens := f.deployment("chat").hosted.Load().router.View().ByID("b").PeerLoad()
	require.Equal(t, replicaLoad{6, 600}, replicaLoad{int64(n), tokens}, "the mean of the others")
}
