package tests

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/warmpath/warmpath/client"
)

// Issue 12.27: the policy learns from pinned calls: it sends the prompt to the same replica again, and the Decision
// of a later pinned call has the matched tokens there.
func TestPinnedCallsAreLearned(t *testing.T) {
	rs := replicas(t, 4)
	cc := dial(t, target(rs...), client.WithConfig(config(`{"kv_aware":{}}`)))
	connected(t, cc, rs)
	stub := testpb.NewTestServiceClient(cc)
	for i, r := range rs {
		text := strings.Repeat(string(rune('a'+i)), 2000)
		pinned := func() (d client.Decision) {
			_, err := stub.UnaryCall(client.WithPin(client.WithDecision(deadline(t), &d), r.addr), simple(text))
			require.NoError(t, err)
			require.EqualValues(t, "pinned", d.Reason)
			return d
		}
		require.Zero(t, pinned().MatchedTokens)
		d := asked(t, cc, text)
		require.Equal(t, r.addr, d.Replica)
		require.Positive(t, d.MatchedTokens)
		require.Equal(t, d.MatchedTokens, pinned().MatchedTokens)
	}
}
