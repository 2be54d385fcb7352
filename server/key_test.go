package server

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/part"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

func hashed(n int, size uint32, length uint64) *warmpathv1.RequestKey {
	return &warmpathv1.RequestKey{Prompt: &warmpathv1.RequestKey_BlockHashes{BlockHashes: &warmpathv1.BlockHashes{
		Hashes: make([]uint64, n), Block: &warmpathv1.BlockHashes_BlockTokens{BlockTokens: size}, Length: length,
	}}}
}

func TestDecodeKey(t *testing.T) {
	text := &warmpathv1.RequestKey{Prompt: &warmpathv1.RequestKey_Text{Text: "12345"}}
	bytes := hashed(2, 0, 100)
	bytes.GetBlockHashes().Block = &warmpathv1.BlockHashes_BlockBytes{BlockBytes: 64}
	for name, tt := range map[string]struct {
		key    *warmpathv1.RequestKey
		tokens int
		want   string
	}{
		"nothing":         {nil, 0, ""},
		"text":            {text, 2, ""},
		"tokens":          {&warmpathv1.RequestKey{Prompt: tokens(7)}, 7, ""},
		"given":           {&warmpathv1.RequestKey{Prompt: tokens(7), PromptTokens: 9}, 9, ""},
		"hashes":          {hashed(2, 16, 32), 32, ""},
		"no length":       {hashed(2, 16, 0), 32, ""},
		"a tail":          {hashed(2, 16, 17), 17, ""},
		"bytes":           {bytes, 25, ""},
		"no hashes":       {hashed(0, 16, 0), 0, ""},
		"too few":         {hashed(1, 16, 17), 0, "key.block_hashes: 1 hashes do not fit a length of 17 in blocks of 16"},
		"too many":        {hashed(3, 16, 32), 0, "3 hashes do not fit"},
		"no block":        {hashed(3, 0, 32), 0, "block_tokens or block_bytes must be between 1 and"},
		"huge block":      {hashed(1, 1<<31, 32), 0, "block_tokens or block_bytes"},
		"huge length":     {hashed(1, 16, 1<<63), 0, "length: more than"},
		"empty oneof":     {&warmpathv1.RequestKey{Prompt: &warmpathv1.RequestKey_BlockHashes{}}, 0, "block_tokens"},
		"long session":    {&warmpathv1.RequestKey{Session: string(make([]byte, 8193))}, 0, "key.session: longer than 8192 bytes"},
		"long parent":     {&warmpathv1.RequestKey{ParentSession: string(make([]byte, 8193))}, 0, "key.parent_session: longer than 8192 bytes"},
		"long request id": {&warmpathv1.RequestKey{RequestId: string(make([]byte, 257))}, 0, "key.request_id: longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			var q policy.Request
			err := decodeKey(&warmpathv1.ChooseReplicaRequest{Key: tt.key}, &q)
			if tt.want != "" {
				require.Equal(t, codes.InvalidArgument, status.Code(err))
				require.ErrorContains(t, err, tt.want)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.tokens, q.PromptTokens)
			require.Equal(t, tt.tokens == 0, q.Prompt.Empty())
		})
	}
}

// Whatever a caller sends is refused with a status or picks a replica.
func FuzzChoose(f *testing.F) {
	for _, r := range []*warmpathv1.ChooseReplicaRequest{
		{}, {Key: hashed(2, 16, 17), Mode: reserve}, {Key: hashed(1, 512, 1), Mode: query, Pinned: "a"}, {Key: &warmpathv1.RequestKey{Prompt: tokens(40), Model: "m:x"}},
		{Excluded: []string{"a"}, Tried: []string{"b", "b"}, MaxFallbacks: 16, Key: &warmpathv1.RequestKey{Prompt: &warmpathv1.RequestKey_Text{Text: "hello"}}},
	} {
		raw, err := proto.Marshal(r)
		require.NoError(f, err)
		f.Add(raw)
	}
	c, err := ParseConfig([]byte(`
load_interval: 10s
deployments:
  chat: {replicas: [{id: a, address: "a:1"}, {id: b, address: "b:1"}]}
  code: {models: [m], policy: {kv_aware: {}}, replicas: [{id: a, address: "a:1", ranks: 2}]}`))
	require.NoError(f, err)
	now := newClock()
	s, err := New(c, Options{Logger: discard, now: now.now})
	require.NoError(f, err)
	f.Cleanup(s.Close)
	f.Fuzz(func(t *testing.T, raw []byte) {
		var r warmpathv1.ChooseReplicaRequest
		if proto.Unmarshal(raw, &r) != nil {
			return
		}
		r.WaitMs = 0
		a, err := services{Server: s}.ChooseReplica(t.Context(), &r)
		if err != nil {
			require.NotContains(t, []codes.Code{codes.OK, codes.Unknown, codes.Internal}, status.Code(err), "%v", err)
			return
		}
		require.NotEmpty(t, a.GetReplica().GetAddress())
		_, err = proto.Marshal(a)
		require.NoError(t, err)
		now.advance(time.Minute)
		(*s.deployments.Load())[a.GetDeployment()].tick(now.now())
	})
}

// A child is identified by its parent and its own id, whether or not the caller has joined them, as long as both
// fit.
func TestDecodeParent(t *testing.T) {
	long := strings.Repeat("p", 8192)
	for _, tt := range []struct{ session, parent, whole, affinity string }{
		{"s", "", "s", "s"},
		{"s", "p", "p/s", "p"},
		{"p/s", "p", "p/s", "p"},
		{"", "p", "", ""},
		{"s", long, "s", "s"},
	} {
		var q policy.Request
		key := &warmpathv1.RequestKey{Session: tt.session, ParentSession: tt.parent, SessionFinal: true}
		require.NoError(t, decodeKey(&warmpathv1.ChooseReplicaRequest{Key: key}, &q))
		require.Equal(t, tt.whole, q.Session)
		require.Equal(t, tt.affinity, q.Affinity())
		require.True(t, part.OfRequest(&q).Final)
	}
}
