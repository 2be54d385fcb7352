package peers

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

// allPeers returns all indexes, by name.
func allPeers(t testing.TB) map[string]peer {
	return map[string]peer{
		"warmpath, tokens":    newTable(t, false),
		"warmpath, text":      newTable(t, true),
		"llm-d-kv-cache":      newLLMD(t, false),
		"inference extension": newExtension(t),
	}
}

// TestSameAnswers shows that the benchmarks compare the same work: every index finds the replicas that hold the
// prompt, with the same depths, in every layout.
func TestSameAnswers(t *testing.T) {
	asked := newPrompt(seeded(1), depth)
	for _, l := range layouts() {
		var want [replicas]int
		for _, h := range l.holds {
			want[h.replica] = h.blocks
		}
		for name, p := range allPeers(t) {
			arrange(p, l, asked)
			assert.Equal(t, want, p.depths(asked), "%s, %s", l.name, name)
		}
	}
}

// TestSameAnswersForChats adds random chats with common prefixes to all indexes, and looks all of them up.
func TestSameAnswersForChats(t *testing.T) {
	rnd, all := seeded(3), allPeers(t)
	chats := []prompt{newPrompt(rnd, 1)}
	for range 60 {
		before := chats[rnd.IntN(len(chats))]
		chat := before.then(newPrompt(rnd, 1+rnd.IntN(12)))
		chats = append(chats, chat)
		to := rnd.IntN(replicas)
		for _, p := range all {
			p.add(to, chat, 0)
		}
	}
	held := 0
	for _, chat := range chats {
		want := all["llm-d-kv-cache"].depths(chat)
		for name, p := range all {
			require.Equal(t, want, p.depths(chat), name)
		}
		for _, d := range want {
			held += d
		}
	}
	assert.NotZero(t, held)
}

// TestPicks shows that the measured policies pick a replica that holds the longest prefix.
func TestPicks(t *testing.T) {
	asked := newPrompt(seeded(1), depth)
	for _, l := range layouts() {
		longest := 0
		for _, h := range l.holds {
			longest = max(longest, h.blocks*blockTokens)
		}
		for name, x := range contestants(t) {
			if l.name == "pieces" && !x.reported {
				continue // a route always adds a whole prompt
			}
			arrange(x, l, asked)
			var q policy.Request
			d := x.pick(&q, asked)
			assert.Equal(t, longest, d.MatchedTokens, "%s, %s", l.name, name)
			assert.NotNil(t, d.Replica)
		}
	}
}

// TestAllocations: a pick of 8,192 tokens allocates twice, for the state of the request and for the hashes. All other
// memory is reused after the call.
func TestAllocations(t *testing.T) {
	asked := newPrompt(seeded(1), depth)
	for _, l := range layouts() {
		for name, x := range contestants(t) {
			arrange(x, l, asked)
			var q policy.Request
			got := testing.AllocsPerRun(100, func() {
				d := x.pick(&q, asked)
				x.policy.Observer.Completed(&q, d, policy.Outcome{Sent: true, Usage: policy.NoUsage})
			})
			assert.LessOrEqual(t, got, 2., "%s, %s", l.name, name)
		}
	}
}

func contestants(t testing.TB) map[string]*ours {
	return map[string]*ours{"reported": newReported(t, false), "predicted": newPredicted(t, false)}
}
