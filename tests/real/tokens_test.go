package real

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/client"
)

// caches is what engines of unbounded caches hold: each full block of what they have computed, by all that is before it.
type caches map[string]map[string]bool // by replica

// computed adds what a call has computed: its prompt, and its output but for the last token, which was sampled only.
func (c caches) computed(a answer) {
	if c[a.Replica] == nil {
		c[a.Replica] = make(map[string]bool)
	}
	all := join(a.prompt, a.output[:len(a.output)-1])
	for n := blockTokens; n <= len(all); n += blockTokens {
		key := make([]byte, 0, 2*n)
		for _, id := range all[:n] {
			key = append(key, byte(id), byte(id>>8))
		}
		c[a.Replica][a.salt+"/"+a.adapter+"/"+string(key)] = true
	}
}

// heard returns a function that waits, after a call, until the channel has heard of all blocks that were stored.
func (c caches) heard(t *testing.T, m *meter) func(a answer) {
	return func(a answer) {
		t.Helper()
		c.computed(a)
		require.Eventually(t, func() bool {
			return m.ofReplica(t, "warmpath.kv_events.blocks", a.Replica) == int64(len(c[a.Replica]))
		}, time.Minute, time.Millisecond, "%d blocks of %s", len(c[a.Replica]), a.Replica)
	}
}

// inTurns holds conversations one call at a time: the first turns of all, then the second ones. After each call it runs
// then. more changes the requests of conversation i.
func inTurns(t *testing.T, all []conversation, ask generate, then func(answer), more ...func(i int, q *request)) (answers []answer) {
	t.Helper()
	prompts := make([][]uint32, len(all))
	for turn := range all[0].turns {
		for i, c := range all {
			if turn == 0 {
				prompts[i] = c.system
			}
			prompts[i] = join(prompts[i], c.turns[turn])
			q := request{prompt: prompts[i], bound: outputTokens}
			for _, f := range more {
				f(i, &q)
			}
			a := ask(t.Context(), q)
			require.NoError(t, a.err)
			prompts[i] = join(prompts[i], a.output)
			answers = append(answers, a)
			then(a)
		}
	}
	return answers
}

// Once the events of the calls before it have arrived, the tokens that a call is expected to find cached are those that
// the engine finds, each time; after FlushCache, too.
func TestExpectedCachedTokensAreTheEngines(t *testing.T) {
	engines := shared(t)
	m := newMeter(t)
	ask := viaEngine(dial(t, target(engines), m.option, client.WithConfig(`{"kv_events":"grpc:vllm"}`)))
	equal := func(conversations []conversation) (expected int) {
		t.Helper()
		replicas := make(map[string]bool)
		for i, a := range inTurns(t, conversations, ask, make(caches).heard(t, m)) {
			require.Equal(t, a.cached, a.MatchedTokens, "call %d: %+v", i, a.Decision)
			require.Equal(t, a.cached, a.Usage.CachedTokens)
			require.Equal(t, len(a.prompt), a.Usage.PromptTokens)
			replicas[a.Replica] = true
			expected += a.MatchedTokens
		}
		require.Greater(t, len(replicas), 1)
		return expected
	}
	all := conversations(36, 1)
	t.Logf("expected and cached: %d", equal(all))
	for _, e := range engines {
		require.NoError(t, e.flush(t.Context()))
		// The event follows with a step. The call fills no block.
		require.NoError(t, viaEngine(e.conn)(t.Context(), request{prompt: []uint32{3, 4, 5}, bound: 2}).err)
	}
	require.Eventually(t, func() bool { return m.ofReplica(t, "warmpath.kv_events.blocks", "") == 0 }, time.Minute, time.Millisecond)
	t.Logf("after FlushCache: %d", equal(all[:12]))
}
