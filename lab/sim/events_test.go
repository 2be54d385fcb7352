package sim

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/workload"
)

// cacheContents is what a client received.
type cacheContents map[string]map[uint64]bool

// take applies changes, each of which must be one: nothing is stored or removed twice.
func (b cacheContents) take(t testing.TB, changes []policy.CacheChange, block int) {
	for _, c := range changes {
		require.Equal(t, block, c.BlockTokens)
		require.True(t, c.Coarse)
		require.NotZero(t, len(c.Removed)+len(c.Stored))
		if b[c.Replica] == nil {
			b[c.Replica] = map[uint64]bool{}
		}
		for _, h := range c.Removed {
			require.True(t, b[c.Replica][h])
			delete(b[c.Replica], h)
		}
		for _, h := range c.Stored {
			require.False(t, b[c.Replica][h])
			b[c.Replica][h] = true
		}
	}
}

// recorder is a round robin that records the events it receives.
type recorder struct {
	turn   int
	record func([]policy.CacheChange)
}

func (p *recorder) choose(_ *policy.Request, v policy.View) policy.Decision {
	p.turn++
	return policy.To(v.Connected()[p.turn%len(v.Connected())], policy.ReasonRoundRobin)
}

// recorded runs a workload with recorders for three clients of a mixed fleet.
func recorded(t *testing.T, name string, rs []workload.Request, share Share, record func(client int, changes []policy.CacheChange)) *run {
	n := 0
	policy.Register(name, func(struct{}) (policy.Policy, error) {
		client := n
		n++
		p := &recorder{record: func(cs []policy.CacheChange) { record(client, cs) }}
		return policy.Policy{Choose: p.choose, Observer: policy.Observer{CacheChanged: p.record}}, nil
	})
	c := small(name, 3, share)
	c.Engines = []enginesim.Config{{KVTokens: 40_000}, {Preset: "2xh100-8b", KVTokens: 60_000}}
	r, err := finished(t.Context(), NewPrompts(rs), c)
	require.NoError(t, err)
	require.Zero(t, r.failed)
	return r
}

// All subscribers of the server have every superblock that an engine has.
func TestCoarse(t *testing.T) {
	rs := chats(t, 8)
	contents := []cacheContents{{}, {}, {}}
	late := workload.Request{ID: "late", At: time.Hour, PromptTokens: 1, OutputTokens: 1, Segments: []workload.Segment{{Len: 1}}}
	r := recorded(t, "recorder-coarse", append(rs, late), ShareBroadcast, func(client int, changes []policy.CacheChange) {
		contents[client].take(t, changes, 16)
	})
	require.Equal(t, contents[0], contents[1])
	require.Equal(t, contents[0], contents[2])
	require.Len(t, contents[0], 4)
	there, gone := 0, 0
	for _, m := range r.machines {
		for i := range rs {
			hashes, _ := rs[i].Hashes(nil, 16, workload.BaseHashSeed)
			for k := 31; k < len(hashes); k += 32 {
				cached := m.engine.Published(hashes[:k+1]) == k+1
				require.Equal(t, cached, contents[0][m.id][hashes[k]])
				if cached {
					there++
				} else {
					gone++
				}
			}
		}
	}
	require.Positive(t, there)
	require.Positive(t, gone)
}

// A subscriber has every cached block of the prompt that it routes. Where requests come one by one, the engine
// finds the same.
func TestExact(t *testing.T) {
	subscribers["recorder-exact"] = true
	defer delete(subscribers, "recorder-exact")
	rs := chats(t, 8)
	for i := range rs {
		rs[i].At = time.Duration(i) * time.Minute
	}
	known := make([]map[string]map[uint64]bool, 3)
	var depths []map[string]int // by request and replica
	r := recorded(t, "recorder-exact", rs, ShareNone, func(client int, changes []policy.CacheChange) {
		hashes, _ := rs[len(depths)].Hashes(nil, 16, workload.BaseHashSeed)
		if known[client] == nil {
			known[client] = map[string]map[uint64]bool{}
		}
		depth := map[string]int{}
		for _, c := range changes {
			require.Equal(t, 16, c.BlockTokens)
			blocks := known[client][c.Replica]
			if blocks == nil {
				blocks = map[uint64]bool{}
				known[client][c.Replica] = blocks
			}
			for _, h := range c.Removed {
				delete(blocks, h)
			}
			for _, h := range c.Stored {
				blocks[h] = true
			}
			for depth[c.Replica] < len(hashes) && blocks[hashes[depth[c.Replica]]] {
				depth[c.Replica]++
			}
		}
		depths = append(depths, depth)
	})
	some := 0
	for i, s := range r.samples {
		require.Equal(t, s.Cached, min(16*depths[i][s.Replica], (s.Prompt-1)/16*16), i)
		some += s.Cached
	}
	require.Positive(t, some)
}

// A client without subscription receives no events.
func TestNoSubscription(t *testing.T) {
	recorded(t, "recorder-none", chats(t, 8), ShareLoad, func(int, []policy.CacheChange) { t.Error("it received events") })
}

func TestSubscription(t *testing.T) {
	for _, c := range []struct {
		policy        string
		share         Share
		exact, coarse bool
	}{
		{"kv_aware", ShareNone, true, false},
		{"kv_aware", ShareLoad, true, false},
		{"kv_aware", ShareBroadcast, false, true},
		{"prefix_cache_affinity", ShareNone, false, false},
		{"prefix_cache_affinity", ShareLoad, false, false},
		{"prefix_cache_affinity", ShareBroadcast, false, false},
		{"round_robin", ShareBroadcast, false, false},
	} {
		r, err := newRun(NewPrompts(nil), small(c.policy, 2, c.share))
		require.NoError(t, err)
		require.Equal(t, c.exact, r.exact, "%+v", c)
		require.Equal(t, c.coarse, r.share != nil && len(r.share.caches) > 0, "%+v", c)
	}
}

// Whatever comes and goes between two broadcasts, clients have in the end what the engines hold, and chains stay
// chains.
func TestCoarseProperty(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	l := newContents("a", 256)
	depth := func(h uint64) uint64 { return h % 100 } // hash 100·s + i is block i of sequence s
	there, contents := map[uint64]bool{}, cacheContents{}
	for range 2000 {
		for range rng.IntN(6) {
			seq, first := uint64(rng.IntN(4))*100, rng.IntN(8)
			stored := enginesim.KVEvent{Stored: true, First: first}
			removed := enginesim.KVEvent{}
			for i := first; i < 8 && !there[seq+uint64(i)]; i++ {
				stored.Hashes = append(stored.Hashes, seq+uint64(i))
				there[seq+uint64(i)] = true
			}
			for h := range there {
				if len(removed.Hashes) < 3 {
					removed.Hashes = append(removed.Hashes, h)
				}
			}
			if rng.IntN(2) == 0 {
				removed.Hashes = nil
			}
			for _, h := range removed.Hashes {
				delete(there, h)
			}
			l.KVEvents(0, []enginesim.KVEvent{stored, removed})
		}
		changes := l.changes
		l.changes = nil
		contents.take(t, changes, 256)
		for _, c := range changes {
			for i, h := range c.Stored {
				require.EqualValues(t, depth(c.Stored[0])+2*uint64(i), depth(h), "the chain has no gap")
			}
		}
		want := map[uint64]bool{}
		for h := range there {
			if depth(h)%2 == 1 {
				want[h] = true
			}
		}
		if len(contents) > 0 {
			require.Equal(t, want, contents["a"])
		}
	}
}

// A server that only receives still sends what a single client can use.
func TestBroadcastToOneClient(t *testing.T) {
	s := newSharing([]*router.Router{policyRouter(t)}, 1, time.Second, nil)
	require.Equal(t, time.Second, s.next)
	s.tick()
	require.Equal(t, 2*time.Second, s.next)
}
