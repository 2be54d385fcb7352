package tests

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
)

func TestSessionPrecedence(t *testing.T) {
	rs := replicas(t, 4)
	cc := dial(t, target(rs...), client.WithConfig(`{"policy":{"consistent_hash":{}},"dialects":[{"methods":["`+unaryMethod+`"],"session":"3.2"}]}`))
	connected(t, cc, rs)
	// Sessions whose replicas all differ from one another.
	sessions := make([]string, 0, len(rs))
	for _, r := range rs {
		for i := 0; ; i++ {
			s := fmt.Sprintf("user-%d", i)
			if ringOrder(t, rs, s)[0] == r.addr {
				sessions = append(sessions, s)
				break
			}
		}
	}
	ctx := deadline(t)
	require.Equal(t, rs[0].addr, where(t, ctx, cc, sessions[0]), "the session in the message")
	ctx = metadata.AppendToOutgoingContext(ctx, "X-Session-ID", sessions[1])
	require.Equal(t, rs[1].addr, where(t, ctx, cc, sessions[0]), "x-session-id comes before it")
	ctx = metadata.AppendToOutgoingContext(ctx, "session-id", sessions[2])
	require.Equal(t, rs[2].addr, where(t, ctx, cc, sessions[0]), "session_id, in any spelling, before that")
	ctx = client.WithSession(ctx, sessions[3])
	require.Equal(t, rs[3].addr, where(t, ctx, cc, sessions[0]), "the application's session takes precedence")
}

func TestPinAndExclude(t *testing.T) {
	rs := replicas(t, 3)
	cc := dial(t, target(rs...), roundRobin())
	connected(t, cc, rs)
	for _, r := range rs {
		for range 3 {
			require.Equal(t, r.addr, where(t, client.WithPin(deadline(t), r.addr), cc, ""))
			require.NotEqual(t, r.addr, where(t, client.WithExclude(deadline(t), r.addr), cc, ""))
		}
	}
	stub := testpb.NewTestServiceClient(cc)
	_, err := stub.UnaryCall(client.WithExclude(deadline(t), rs[0].addr, rs[1].addr, rs[2].addr), simple(""))
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	_, err = stub.UnaryCall(client.WithPin(deadline(t), "nobody"), simple(""))
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
}

// Channels without shared state send a session, and a prompt, to the same replica.
func TestChannelsAgree(t *testing.T) {
	rs := replicas(t, 5)
	prompts := func(i int) string { return strings.Repeat(fmt.Sprintf("document %d. ", i), 200) }
	for _, policy := range []string{"consistent_hash", "kv_aware"} {
		t.Run(policy, func(t *testing.T) {
			homes := make(map[int]string)
			used := make(map[string]bool)
			for c := range 3 {
				order := append(append([]*replica{}, rs[c:]...), rs[:c]...) // the result does not depend on the resolver's order
				cc := dial(t, target(order...), client.WithConfig(config(`{"`+policy+`":{}}`)))
				connected(t, cc, rs)
				for i := range 30 {
					got := where(t, client.WithSession(deadline(t), fmt.Sprint("session ", i)), cc, prompts(i))
					if home, ok := homes[i]; ok {
						require.Equal(t, home, got, "channel %d, key %d", c, i)
					}
					homes[i] = got
					used[got] = true
				}
			}
			require.Greater(t, len(used), 2)
		})
	}
}
