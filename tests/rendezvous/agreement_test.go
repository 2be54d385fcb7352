// Package rendezvous_test checks with whole workloads that clients which share nothing agree on keys.
package rendezvous_test

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/race"
	"github.com/warmpath/warmpath/internal/rendezvous"
	"github.com/warmpath/warmpath/lab/workload"
)

const conversationTrace = "../../../shared/traces/mooncake_conversation.jsonl"

// learned is how many requests a client needs to have seen.
const learned = 200

// cut returns the blocks of every request.
func cut(rs []workload.Request) [][]uint64 {
	prompts := make([][]uint64, len(rs))
	for i := range rs {
		var b rendezvous.Blocks
		b.Cut(policy.Prompt{Tokens: rs[i].Tokens()}, rs[i].PromptTokens, rendezvous.Grain{Bytes: 64, Tokens: 16}, 1337)
		prompts[i] = b.Hashes
	}
	return prompts
}

// agreement gives each request of a workload to one of the clients at random. Once some clients have learned
// enough, it compares now and then their blocks that distinguish a prompt. It returns the share of pairs of
// clients that agree.
func agreement(t *testing.T, prompts [][]uint64, clients, replicas int) float64 {
	rnd := rand.New(rand.NewPCG(3, 4))
	all, sent := make([]*rendezvous.Popularity, clients), make([]int, clients)
	for i := range all {
		all[i] = rendezvous.NewPopularity()
	}
	pairs, same := 0, 0
	for i, blocks := range prompts {
		if i%(7*clients) == 0 {
			var chosen []int
			for at, p := range all {
				if sent[at] >= learned {
					s := &rendezvous.Prompt{Blocks: rendezvous.Blocks{Hashes: blocks}}
					p.Find(s, replicas)
					chosen = append(chosen, s.First)
				}
			}
			for j, x := range chosen {
				for _, y := range chosen[:j] {
					if pairs++; x == y {
						same++
					}
				}
			}
		}
		at := rnd.IntN(clients)
		s := &rendezvous.Prompt{Blocks: rendezvous.Blocks{Hashes: blocks}}
		all[at].Find(s, replicas)
		all[at].Sent(s)
		sent[at]++
	}
	require.Greater(t, pairs, 50)
	return float64(same) / float64(pairs)
}

// Clients differ on a prefix whose share of the requests is about 1/N, within the accuracy of what they have seen:
// of the 32 prefixes of cross-session the first has 0.246 of the requests, which 4 replicas cannot distinguish
// from 1/4, and the shares of most are within a factor of two of 1/64. Each of the four prefixes of coding-agents
// has about 1/4 of them, so 4 replicas are left out there.
func TestClientsThatSeeDifferentRequestsAgree(t *testing.T) {
	names := workload.Names()
	for _, name := range names[:race.Of(len(names), 2)] {
		rs, err := workload.Generate(workload.Spec{Name: name, Rate: 12, Duration: 6 * time.Minute, Seed: 1})
		require.NoError(t, err)
		prompts := cut(rs)
		for _, clients := range race.Of([]int{2, 8}, []int{2}) {
			for replicas, least := range map[int]float64{4: 0.8, 16: 0.95, 64: 0.7} {
				if name == "coding-agents" && replicas == 4 {
					continue
				}
				got := agreement(t, prompts, clients, replicas)
				t.Logf("%s, %d clients, %d replicas: %.3f", name, clients, replicas, got)
				assert.GreaterOrEqual(t, got, least, "%s, %d clients, %d replicas", name, clients, replicas)
			}
		}
	}
}

func TestClientsAgreeOnTheConversationTrace(t *testing.T) {
	if _, err := os.Stat(conversationTrace); err != nil {
		t.Skip("the trace is not here: ", err)
	}
	rs, err := workload.LoadFile(conversationTrace, "mooncake")
	require.NoError(t, err)
	prompts := cut(rs[:race.Of(5000, 1500)])
	for _, clients := range race.Of([]int{2, 16}, []int{2}) {
		got := agreement(t, prompts, clients, 16)
		t.Logf("%d clients: %.3f", clients, got)
		assert.GreaterOrEqual(t, got, 0.95, "%d clients", clients)
	}
}
