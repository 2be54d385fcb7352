package server

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// silent is a deployment with one replica whose KV events cannot be reached.
const silent = `
load_interval: 10s
deployments:
  chat:
    policy: {kv_aware: {block_tokens: 16}}
    replicas: [{id: a, address: "127.0.0.1:1"}, {id: b, address: "127.0.0.1:2"}, {id: c, address: "127.0.0.1:3", kv_events: "tcp://127.0.0.1:1"}]
`

func superblocks(prompt []uint64) (all []uint64) {
	for end := 32; end <= len(prompt); end += 32 {
		all = append(all, prompt[end-1])
	}
	return all
}

func pickOf(hashes []uint64) *warmpathv1.ChooseReplicaRequest {
	return &warmpathv1.ChooseReplicaRequest{
		Mode: warmpathv1.PickMode_PICK_MODE_QUERY,
		Key: &warmpathv1.RequestKey{Prompt: &warmpathv1.RequestKey_BlockHashes{BlockHashes: &warmpathv1.BlockHashes{
			Hashes: hashes, Block: &warmpathv1.BlockHashes_BlockTokens{BlockTokens: 16},
		}}},
	}
}

// A client's routes are broadcast to others and used by the server's own picks, but not those to a replica with KV
// events.
func TestRoutesAreShared(t *testing.T) {
	f := start(t, silent)
	one := f.watch(t, &warmpathv1.WatchStart{ClientId: "one", Index: true})
	m := one.next()
	require.True(t, m.GetRoutesWanted())
	other := f.watch(t, &warmpathv1.WatchStart{ClientId: "other", Index: true})
	require.True(t, other.next().GetRoutesWanted())

	prompt := make([]uint32, 2048)
	hashes := blockHashes(prompt, 16)
	sent := superblocks(hashes)
	require.Len(t, sent, 4)
	require.NoError(t, one.stream.Send(&warmpathv1.WatchReplicasRequest{Routes: &warmpathv1.RouteReport{Routes: []*warmpathv1.Route{
		{Replica: 2, Superblocks: sent}, {Replica: 3, Superblocks: sent}, {Replica: 99, Superblocks: sent}, {Replica: 1}, {Replica: 1, Rank: 1, Superblocks: sent},
	}}}))
	d := f.deployment("chat")
	require.Eventually(t, func() bool { f.tick("chat"); return d.hosted.Load().index.size() > 0 }, 20*time.Second, time.Millisecond)
	var changes []*warmpathv1.CacheChange
	for len(changes) == 0 {
		changes = other.next().GetIndex().GetChanges()
	}
	require.Len(t, changes, 1)
	require.EqualValues(t, 2, changes[0].GetReplica())
	require.Equal(t, sent, changes[0].GetStored())
	require.True(t, changes[0].GetRouted())

	a := f.choose(t, pickOf(hashes))
	require.Equal(t, "b", a.GetReplica().GetId())
	require.EqualValues(t, 2048, a.GetDecision().GetMatchedTokens())

	require.NoError(t, f.Update(parse(t, `
load_interval: 10s
deployments:
  chat:
    policy: {kv_aware: {block_tokens: 16}}
    replicas: [{id: a, address: "127.0.0.1:1"}, {id: b, address: "127.0.0.1:2", kv_events: "tcp://127.0.0.1:1"}]
`)))
	f.tick("chat")
	require.Zero(t, d.hosted.Load().index.size(), "now it publishes events")
	require.Zero(t, f.choose(t, pickOf(hashes)).GetDecision().GetMatchedTokens())
}

// The server's picks are broadcast to watchers.
func TestOwnPicksAreShared(t *testing.T) {
	f := start(t, silent)
	hashes := blockHashes(make([]uint32, 1024), 16)
	ask := pickOf(hashes)
	f.choose(t, ask)
	f.tick("chat")
	d := f.deployment("chat")
	require.Zero(t, d.hosted.Load().index.size(), "a query is no route")
	ask.Mode = warmpathv1.PickMode_PICK_MODE_COUNT
	ask.Excluded = []string{"c"}
	to := f.choose(t, ask).GetReplica().GetId()
	f.advance(2 * time.Second) // then it counts as prefilled
	f.tick("chat")
	w := f.watch(t, &warmpathv1.WatchStart{ClientId: "w", Index: true})
	changes := w.next().GetIndex().GetChanges()
	require.Len(t, changes, 1)
	require.Equal(t, d.roster.numberOf(to), changes[0].GetReplica())
	require.Equal(t, superblocks(hashes), changes[0].GetStored())
}

func TestRoutesAreBounded(t *testing.T) {
	held := make(map[uint64]bool)
	x := newIndex(0)
	publish := func(changes []policy.CacheChange) {
		for _, c := range changes {
			if c.Cleared {
				clear(held)
			}
			for _, h := range c.Removed {
				require.True(t, held[h])
				delete(held, h)
			}
			for _, h := range c.Stored {
				held[h] = true
			}
		}
	}
	silent := func(caches map[string]cacheOf) { publish(x.setSilent(caches)) }
	take := func(all []router.Route) { publish(x.predict(all)) }
	silent(map[string]cacheOf{"a": {tokens: 10 * policy.SuperblockTokens}})
	require.True(t, x.predicts())
	for i := range uint64(1000) {
		take([]router.Route{{Replica: "a", Superblocks: []uint64{1, 2, 100 + i, 10_000 + i}}, {Replica: "b", Superblocks: []uint64{7}}})
		require.LessOrEqual(t, len(held), 10)
		require.True(t, held[1] && held[2], "the prefix that all share stays")
	}
	long := make([]uint64, 50)
	for i := range long {
		long[i] = uint64(1_000_000 + i)
	}
	take([]router.Route{{Replica: "a", Superblocks: long}})
	require.Len(t, held, 10)
	for _, h := range long[:10] {
		require.True(t, held[h])
	}
	life := func(instance string) {
		silent(map[string]cacheOf{"a": {tokens: 10 * policy.SuperblockTokens, instance: instance}})
	}
	life("one")
	require.Len(t, held, 10, "its instance was unknown")
	life("two")
	require.Empty(t, held, "a restarted replica is cold")
	take([]router.Route{{Replica: "a", Superblocks: long}})
	require.Len(t, held, 10)
	silent(nil)
	require.Empty(t, held)
	require.False(t, x.predicts())
	require.Zero(t, x.size())
	x.flush(func(string) uint32 { return 0 })
	require.Empty(t, x.lanes)
}

func TestRoutesThatAreTooMany(t *testing.T) {
	f := start(t, silent)
	for _, r := range []*warmpathv1.RouteReport{
		{Routes: make([]*warmpathv1.Route, router.MaxRoutes+1)},
		{Routes: []*warmpathv1.Route{{Superblocks: make([]uint64, router.MaxRouteHashes+1)}}},
	} {
		for i := range r.Routes {
			if r.Routes[i] == nil {
				r.Routes[i] = new(warmpathv1.Route)
			}
		}
		w := f.watch(t, &warmpathv1.WatchStart{ClientId: "w"})
		w.next()
		require.NoError(t, w.stream.Send(&warmpathv1.WatchReplicasRequest{Routes: r}))
		var err error
		for err == nil {
			_, err = w.stream.Recv()
		}
		require.Equal(t, codes.InvalidArgument, status.Code(err))
	}
}
