package server

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

const apart = `
load_interval: 10s
deployments:
  chat:
    policy: {kv_aware: {}}
    replicas:
    - {id: p, address: "10.0.0.1:1", role: prefill, pair: x, kv_engine_id: engine}
    - {id: d, address: "10.0.0.2:1", role: decode, pair: x}
    - {id: e, address: "10.0.0.3:1", role: decode, pair: x}
    - {id: other, address: "10.0.0.4:1", role: decode, pair: z}
`

// decoding has each decode replica serve 20 requests, which makes a prefill there expensive.
func decoding(t *testing.T, f *fixture) {
	for _, id := range []string{"d", "e", "other"} {
		for range 20 {
			f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: reserve, Pinned: id})
		}
	}
}

func asPair(mode warmpathv1.PickMode) *warmpathv1.ChooseReplicaRequest {
	return &warmpathv1.ChooseReplicaRequest{Mode: mode, Pair: true, Key: &warmpathv1.RequestKey{Prompt: tokens(20_000)}}
}

func TestChoosePairs(t *testing.T) {
	f := start(t, apart)
	decoding(t, f)
	idle := f.load()
	require.Equal(t, idle, f.whole())

	a := f.choose(t, asPair(reserve))
	require.Equal(t, "p", a.GetPrefill().GetId())
	require.Equal(t, "10.0.0.1:8998", a.GetPrefill().GetKvBootstrap())
	require.Equal(t, "engine", a.GetPrefill().GetKvEngineId())
	require.Equal(t, "rendezvous", a.GetPrefillDecision().GetReason())
	require.Contains(t, []string{"d", "e"}, a.GetReplica().GetId())
	require.Equal(t, "decode", a.GetDecision().GetReason())
	both := idle
	both.add(replicaLoad{2, 20_000}, 1)
	require.Equal(t, both, f.load())
	require.Equal(t, both, f.whole())
	for _, other := range a.GetFallbacks() {
		require.NotEqual(t, "p", other.GetId(), "it serves no whole request")
	}

	id := a.GetReservation().GetId()
	one := idle
	one.add(replicaLoad{ongoing: 1}, 1)
	for range 2 {
		require.True(t, f.report(t, id, prefill))
		require.Equal(t, one, f.load())
		require.Equal(t, one, f.whole())
	}
	require.True(t, f.report(t, id, released))
	require.Equal(t, idle, f.load())
	require.Equal(t, idle, f.whole())

	require.Nil(t, f.choose(t, asPair(query)).GetPrefill(), "the replica that decoded it has the prompt")
	f.clock.advance(time.Second)
	f.tick("chat")
	other := asPair(reserve)
	other.Key.CacheSalt = "other"
	a = f.choose(t, other)
	require.NotNil(t, a.GetPrefill())
	require.True(t, f.report(t, a.GetReservation().GetId(), released), "of both legs")
	require.Equal(t, idle, f.load())
	require.Equal(t, idle, f.whole())
}

// An engine may refuse a request that is not split: then costs are not compared.
func TestChoosePairOnly(t *testing.T) {
	f := start(t, apart)
	r := asPair(query)
	require.Nil(t, f.choose(t, r).GetPrefill())
	r.PairOnly = true
	require.Equal(t, "p", f.choose(t, r).GetPrefill().GetId())
	r.Pair = false
	_, err := f.pb.ChooseReplica(soon(t), r)
	require.Equal(t, codes.Unavailable, status.Code(err))
}

// A caller that does not ask for a pair gets a replica that serves the whole request.
func TestChooseWholeOfPairs(t *testing.T) {
	f := start(t, apart)
	decoding(t, f)
	for range 20 {
		r := asPair(count)
		r.Pair = false
		a := f.choose(t, r)
		require.Nil(t, a.GetPrefill())
		require.NotEqual(t, "p", a.GetReplica().GetId())
	}
}

func TestChooseDecodeLeg(t *testing.T) {
	f := start(t, apart)
	r := asPair(reserve)
	r.PrefilledBy, r.Excluded = "p", []string{"d"}
	a := f.choose(t, r)
	require.Equal(t, "e", a.GetReplica().GetId())
	require.Nil(t, a.GetPrefill())
	require.Equal(t, replicaLoad{ongoing: 1}, f.load())
	for _, gone := range []string{"nowhere", "other"} {
		r := asPair(reserve)
		r.PrefilledBy, r.Excluded = gone, []string{"other"}
		_, err := f.pb.ChooseReplica(soon(t), r)
		require.Equal(t, codes.Unavailable, status.Code(err), gone)
	}
}

// A counted pick ends by time: the prefill leg when its prompt does.
func TestCountedPairs(t *testing.T) {
	f := start(t, apart)
	decoding(t, f)
	idle := f.load()
	require.NotNil(t, f.choose(t, asPair(count)).GetPrefill())
	f.clock.advance(countedHold/5 + time.Millisecond)
	f.tick("chat")
	one := idle
	one.add(replicaLoad{ongoing: 1}, 1)
	require.Equal(t, one, f.load())
	f.clock.advance(countedHold)
	f.tick("chat")
	require.Equal(t, idle, f.load())
}
