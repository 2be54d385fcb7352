package enginesim

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/race"
	"github.com/warmpath/warmpath/lab/workload"
)

// fleet runs engines in virtual time behind round robin.
type fleet struct {
	engines []*Engine
	due     []time.Duration
	order   []int // heap of busy engines by due
	place   []int // of each engine in order, -1 if idle
}

func newFleet(t testing.TB, n int, c Config) *fleet {
	f := &fleet{due: make([]time.Duration, n), place: make([]int, n)}
	for i := range n {
		e, err := New(c)
		require.NoError(t, err)
		f.engines = append(f.engines, e)
		f.place[i] = -1
	}
	return f
}

func (f *fleet) Len() int           { return len(f.order) }
func (f *fleet) Less(i, j int) bool { return f.due[f.order[i]] < f.due[f.order[j]] }
func (f *fleet) Swap(i, j int) {
	f.order[i], f.order[j] = f.order[j], f.order[i]
	f.place[f.order[i]], f.place[f.order[j]] = i, j
}
func (f *fleet) Push(x any) {
	f.place[x.(int)] = len(f.order)
	f.order = append(f.order, x.(int))
}
func (f *fleet) Pop() any {
	k := f.order[len(f.order)-1]
	f.order = f.order[:len(f.order)-1]
	f.place[k] = -1
	return k
}

func (f *fleet) update(k int) {
	at, busy := f.engines[k].NextStep()
	f.due[k] = at
	switch {
	case busy && f.place[k] < 0:
		heap.Push(f, k)
	case busy:
		heap.Fix(f, f.place[k])
	case f.place[k] >= 0:
		heap.Remove(f, f.place[k])
	}
}

// advance runs every pass that ends at or before at.
func (f *fleet) advance(at time.Duration) {
	for len(f.order) > 0 && f.due[f.order[0]] <= at {
		k := f.order[0]
		f.engines[k].Step(f.due[k])
		f.update(k)
	}
}

// run gives request i to engine i mod n and returns the sequences.
func (f *fleet) run(t testing.TB, rs []workload.Request) []*Sequence {
	seqs := make([]*Sequence, len(rs))
	for i := range rs {
		f.advance(rs[i].At)
		k := i % len(f.engines)
		s, err := f.engines[k].Submit(rs[i].At, FromWorkload(&rs[i], f.engines[k].Config().BlockSize))
		require.NoError(t, err)
		seqs[i] = s
		f.update(k)
	}
	f.advance(1 << 62)
	return seqs
}

func conversation(t testing.TB) []workload.Request {
	path := filepath.Join("..", "..", "..", "..", "shared", "traces", "mooncake_conversation.jsonl")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no trace at %s: the traces are not part of the repository", path)
	}
	rs, err := workload.LoadFile(path, "mooncake")
	require.NoError(t, err)
	return rs
}

// summary is the result of routing: cached-token ratio and mean TTFT after the warm-up.
func summary(seqs []*Sequence, warmup time.Duration) (hit, ttft float64) {
	var cached, prompt, n int
	var sum time.Duration
	for _, s := range seqs {
		if r := s.Result(); r.Arrival >= warmup {
			cached, prompt, n = cached+r.CachedTokens, prompt+r.PromptTokens, n+1
			sum += r.TTFT()
		}
	}
	return float64(cached) / float64(prompt), sum.Seconds() / float64(n)
}

// The reference measured round robin with one client, so a model that differs much from its own is wrong.
func TestConversationRoundRobin(t *testing.T) {
	if testing.Short() || race.Enabled {
		t.Skip("takes seconds, with the race detector a minute, and has one goroutine")
	}
	for _, c := range []struct {
		name      string
		kv        int
		hit, ttft float64
	}{
		{"offloading", 1_024_000, .072, 1.77},
		{"gpu", 0, .054, 2.37},
	} {
		t.Run(c.name, func(t *testing.T) {
			rs := conversation(t)
			workload.ScaleRate(rs, 2)
			workload.Jitter(rs, 3*time.Second, 1)
			began := time.Now()
			f := newFleet(t, 16, Config{KVTokens: c.kv})
			seqs := f.run(t, rs)
			hit, ttft := summary(seqs, 300*time.Second)
			var passes, preempted int
			for i, e := range f.engines {
				passes += e.Stats().Passes
				preempted += e.Stats().Preemptions
				require.Equal(t, e.Stats().Submitted, e.Stats().Finished, "engine %d", i)
			}
			t.Logf("hit %.4f, TTFT %.3f s, %d passes, %d preemptions, %v", hit, ttft, passes, preempted, time.Since(began).Round(time.Millisecond))
			require.InDelta(t, c.hit, hit, 0.02)
			require.InDelta(t, c.ttft, ttft, 0.5*c.ttft)
		})
	}
}

func BenchmarkConversation(b *testing.B) {
	rs := conversation(b)
	workload.ScaleRate(rs, 2)
	workload.Jitter(rs, 3*time.Second, 1)
	b.ReportAllocs()
	for b.Loop() {
		f := newFleet(b, 16, Config{KVTokens: 1_024_000})
		f.run(b, rs)
	}
}

// BenchmarkStep is the cost of one pass by the number of sequences that decode in it.
func BenchmarkStep(b *testing.B) {
	for _, n := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			e, err := New(Config{KVTokens: 2_000_000})
			require.NoError(b, err)
			rng := rand.New(rand.NewPCG(1, 1))
			fill := func() {
				for e.Load().Running+e.Load().Waiting < n {
					tokens := make([]uint32, 512)
					for i := range tokens {
						tokens[i] = rng.Uint32()
					}
					_, err := e.Submit(e.Now(), FromTokens("r", tokens, 4000, 16, 0))
					require.NoError(b, err)
				}
			}
			fill()
			b.ReportAllocs()
			for b.Loop() {
				at, busy := e.NextStep()
				if !busy {
					fill()
					continue
				}
				e.Step(at)
			}
		})
	}
}
