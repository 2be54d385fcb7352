package real

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/client"
)

// More conversations than the caches have room for are held, a few at a time, and all of them go on once more. The sums of
// expected and cached tokens differ by 1 % at most.
func TestExpectedCachedTokensWhenBlocksAreEvicted(t *testing.T) {
	engines := launch(t, 2, setup{blocks: 300})
	followers := make(map[string]*follower)
	for _, e := range engines {
		followers[e.addr] = follow(t, e)
	}
	m := newMeter(t)
	ask := viaEngine(dial(t, target(engines), m.option, client.WithConfig(`{"kv_events":"grpc:vllm"}`)))
	heard := func(a answer) {
		t.Helper()
		require.Eventually(t, func() bool {
			_, stored := followers[a.Replica].rankOf(a)
			held, _ := followers[a.Replica].blocks()
			return stored && m.ofReplica(t, "warmpath.kv_events.blocks", a.Replica) == int64(held)
		}, time.Minute, time.Millisecond, "the events of a call at %s", a.Replica)
	}
	const all, few = 24, 6
	var answers []answer
	var last []answer // the fifth turns
	for rest := conversations(all, 12); len(rest) > 0; rest = rest[few:] {
		held := inTurns(t, rest[:few], ask, heard)
		answers, last = append(answers, held...), append(last, held[len(held)-few:]...)
	}
	r := rand.New(rand.NewPCG(13, 13))
	for i := len(last) - 1; i >= 0; i-- { // the latest first: the caches still have those
		a := ask(t.Context(), request{prompt: join(join(last[i].prompt, last[i].output), tokens(r, 2*blockTokens)), bound: outputTokens})
		require.NoError(t, a.err)
		heard(a)
		answers = append(answers, a)
	}
	expected, cached, evicted := 0, 0, 0
	for _, a := range answers {
		expected, cached = expected+a.MatchedTokens, cached+a.cached
	}
	for _, f := range followers {
		_, removed := f.blocks()
		evicted += removed
	}
	t.Logf("%d blocks were evicted, expected %d tokens, cached %d", evicted, expected, cached)
	require.Greater(t, evicted, 300)
	require.InEpsilon(t, cached, expected, 0.01)
}
