package server

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

const (
	count   = warmpathv1.PickMode_PICK_MODE_COUNT
	query   = warmpathv1.PickMode_PICK_MODE_QUERY
	reserve = warmpathv1.PickMode_PICK_MODE_RESERVE
)

func tokens(n int) *warmpathv1.RequestKey_TokenIds {
	return &warmpathv1.RequestKey_TokenIds{TokenIds: &warmpathv1.TokenIds{Ids: make([]uint32, n)}}
}

func TestChoose(t *testing.T) {
	f := start(t, quiet)
	a := f.choose(t, &warmpathv1.ChooseReplicaRequest{Key: &warmpathv1.RequestKey{Prompt: tokens(40)}})
	require.Equal(t, "chat", a.GetDeployment())
	require.Contains(t, a.GetReplica().GetAddress(), "10.0.0.")
	require.Equal(t, "round_robin", a.GetDecision().GetReason())
	require.Equal(t, "round_robin", a.GetDecision().GetPolicy())
	require.EqualValues(t, 40, a.GetDecision().GetPromptTokens())
	require.EqualValues(t, -1, a.GetDecision().GetPlace())
	require.Nil(t, a.GetReservation())
	require.Nil(t, a.GetReplica().Rank)
	ids := map[string]bool{a.GetReplica().GetId(): true}
	for _, other := range a.GetFallbacks() {
		ids[other.GetId()] = true
	}
	require.Len(t, ids, 3, "two fallbacks, all different")

	a = f.choose(t, &warmpathv1.ChooseReplicaRequest{Excluded: []string{"a"}, Tried: []string{"b"}, MaxFallbacks: 16})
	require.Equal(t, "c", a.GetReplica().GetId())
	require.Equal(t, "retry", a.GetDecision().GetReason())
	require.Len(t, a.GetFallbacks(), 1)

	a = f.choose(t, &warmpathv1.ChooseReplicaRequest{Pinned: "b"})
	require.Equal(t, "b", a.GetReplica().GetId())
	require.Equal(t, "pinned", a.GetDecision().GetReason())
	require.Empty(t, a.GetFallbacks())
}

const several = `
load_interval: 10s
deployments:
  chat:
    models: [assistant, both, "gpt-oss:120b"]
    policy: {consistent_hash: {}}
    replicas: [{id: a, address: "10.0.0.1:1", models: [llama]}]
  code:
    models: [both]
    policy: {power_of_two_choices: {}}
    max_ongoing_requests: 1
    replicas: [{id: b, address: "10.0.0.2:1", models: [qwen, "odd:name"]}]
  empty: {register: true}
`

func TestWhichDeployment(t *testing.T) {
	f := start(t, several)
	for _, tt := range []struct {
		deployment, model string
		code              codes.Code
		want              string // deployment, or part of the message
	}{
		{"chat", "", codes.OK, "chat"},
		{"chat", "llama", codes.OK, "chat"},
		{"chat", "chat:lora", codes.OK, "chat"},
		{"chat", "qwen", codes.NotFound, `deployment chat does not serve the model "qwen"`},
		{"none", "", codes.NotFound, `there is no deployment "none"; there are chat, code, empty`},
		{"", "", codes.InvalidArgument, "name a deployment: there are chat, code, empty"},
		{"", "llama", codes.OK, "chat"},
		{"", "assistant", codes.OK, "chat"},
		{"", "llama:lora", codes.OK, "chat"},
		{"", "gpt-oss:120b", codes.OK, "chat"},
		{"", "gpt-oss:20b", codes.NotFound, `no deployment serves the model "gpt-oss:20b"`},
		{"", "odd:name", codes.OK, "code"},
		{"", "both", codes.InvalidArgument, `model "both" is served by several deployments; name one of chat, code`},
		{"", "both:lora", codes.InvalidArgument, "name one of chat, code"},
		{"", "gpt", codes.NotFound, `no deployment serves the model "gpt"`},
		{"empty", "", codes.Unavailable, "no replica is connected"},
	} {
		t.Run(tt.deployment+"/"+tt.model, func(t *testing.T) {
			a, err := f.pb.ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{
				Deployment: tt.deployment, Mode: query, Key: &warmpathv1.RequestKey{Model: tt.model},
			})
			require.Equal(t, tt.code, status.Code(err), "%v", err)
			if err != nil {
				require.ErrorContains(t, err, tt.want)
				return
			}
			require.Equal(t, tt.want, a.GetDeployment())
			f.clock.advance(time.Second)
			f.tick(tt.want)
		})
	}
}

// The canonical name of a model, and of its adapter, gives the hashes that the replicas' own names would give.
func TestCanonicalModels(t *testing.T) {
	f := start(t, several)
	for _, tt := range []struct{ model, adapter, base, want string }{
		{"assistant", "", "llama", ""},
		{"assistant:x", "", "llama", "x"},
		{"llama:x", "y", "llama", "y"},
		{"odd:name", "", "odd:name", ""},
	} {
		d, base, adapter, err := f.meant(f.authenticator.unrestricted, "", tt.model)
		require.NoError(t, err)
		if tt.adapter != "" {
			adapter = tt.adapter
		}
		require.Equal(t, tt.base, d.catalogue.Load().canonical(base))
		require.Equal(t, tt.want, adapter)
	}
}

func TestFullAndTooLarge(t *testing.T) {
	f := start(t, several)
	ask := func(r *warmpathv1.ChooseReplicaRequest) error {
		r.Deployment = "code"
		_, err := f.pb.ChooseReplica(soon(t), r)
		return err
	}
	require.NoError(t, ask(&warmpathv1.ChooseReplicaRequest{}))
	err := ask(&warmpathv1.ChooseReplicaRequest{})
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	err = ask(&warmpathv1.ChooseReplicaRequest{WaitMs: 1})
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "waited")
	err = ask(&warmpathv1.ChooseReplicaRequest{Pinned: "none"})
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	err = ask(&warmpathv1.ChooseReplicaRequest{Pinned: string(make([]byte, 257))})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	err = ask(&warmpathv1.ChooseReplicaRequest{Excluded: make([]string, maxExcluded+1)})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	err = ask(&warmpathv1.ChooseReplicaRequest{Key: &warmpathv1.RequestKey{Prompt: tokens(5 << 20)}})
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.ErrorContains(t, err, "larger than max")
	require.Equal(t, map[string]int{"b": 1}, f.ongoing("code"))
}

// Picks without any report spread over the fleet, in every mode.
func TestCallersThatNeverReportSpread(t *testing.T) {
	for _, policy := range []string{"round_robin", "power_of_two_choices", "kv_aware"} {
		for _, mode := range []warmpathv1.PickMode{count, query} {
			t.Run(fmt.Sprint(policy, mode), func(t *testing.T) {
				f := start(t, "load_interval: 10s\ndeployments: {chat: {policy: {"+policy+": {}}, replicas: [{address: 'a:1'}, {address: 'b:1'}, {address: 'c:1'}]}}")
				picks := map[string]int{}
				for range 30 {
					a := f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: mode, Key: &warmpathv1.RequestKey{Prompt: tokens(4096)}})
					picks[a.GetReplica().GetId()]++
				}
				require.Greater(t, len(picks), 1, "%v", picks)
				for id, n := range picks {
					require.Less(t, n, 25, id)
				}
				f.clock.advance(time.Minute)
				f.tick("chat")
				require.Equal(t, map[string]int{"a:1": 0, "b:1": 0, "c:1": 0}, f.ongoing("chat"), "and the load is gone after a while")
			})
		}
	}
}

// A prompt is the same to the policy whether it comes as tokens or as hashes; a query does not change the policy.
func TestHashesMatchTokens(t *testing.T) {
	f := start(t, "load_interval: 10s\ndeployments: {chat: {replicas: [{address: 'a:1'}, {address: 'b:1'}]}}")
	ids := make([]uint32, 100)
	for i := range ids {
		ids[i] = uint32(i)
	}
	byTokens := &warmpathv1.RequestKey{Prompt: &warmpathv1.RequestKey_TokenIds{TokenIds: &warmpathv1.TokenIds{Ids: ids}}}
	hashes := blockHashes(ids, 16)
	byHashes := &warmpathv1.RequestKey{Prompt: &warmpathv1.RequestKey_BlockHashes{BlockHashes: &warmpathv1.BlockHashes{
		Hashes: hashes, Block: &warmpathv1.BlockHashes_BlockTokens{BlockTokens: 16}, Length: 100,
	}}}
	matched := func(mode warmpathv1.PickMode, k *warmpathv1.RequestKey) uint32 {
		a := f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: mode, Key: k})
		require.EqualValues(t, 100, a.GetDecision().GetPromptTokens())
		f.clock.advance(time.Minute)
		f.tick("chat")
		return a.GetDecision().GetMatchedTokens()
	}
	require.Zero(t, matched(query, byHashes))
	require.Zero(t, matched(query, byTokens))
	require.Zero(t, matched(count, byTokens))
	require.EqualValues(t, 100, matched(query, byHashes))
	require.EqualValues(t, 100, matched(count, proto.CloneOf(byTokens)))
}

// A pick whose caller has gone in the meantime adds nothing to the load: its request will not be sent.
func TestPicksOfCallersThatHaveGone(t *testing.T) {
	f := start(t, "deployments: {chat: {policy: {silence: {}}, replicas: [{id: a, address: '10.0.0.1:1'}]}}")
	failures := func() (n uint64) {
		for _, c := range f.status(t, "").GetFailures() {
			n += c.GetCount()
		}
		return n
	}
	for _, mode := range []warmpathv1.PickMode{reserve, count} {
		before := failures()
		require.Eventually(t, func() bool { // the call may end before it reaches the server
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, err := f.pb.ChooseReplica(ctx, &warmpathv1.ChooseReplicaRequest{Mode: mode})
			return status.Code(err) == codes.DeadlineExceeded && failures() > before
		}, 30*time.Second, time.Millisecond)
	}
	require.Eventually(t, func() bool { // a call may be under way at the server for longer than at its caller
		return f.status(t, "").GetReservations() == 0 && f.ongoing("chat")["a"] == 0
	}, 30*time.Second, time.Millisecond)
}
