package enginesim

import (
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The estimate of a request without successors is near its time to the first token: on an idle engine, next to
// decodes, behind a queue of prefills, with part of the prompt cached, and where memory is short.
func TestEstimate(t *testing.T) {
	for _, c := range []struct {
		name           string
		kv, n, prompt  int
		output, shared int
		most           float64 // mean relative error
	}{
		{"idle", 100_000, 0, 4000, 10, 0, 0.02},
		{"decodes", 1_000_000, 40, 300, 800, 0, 0.2},
		{"queue", 1_000_000, 20, 9000, 50, 0, 0.1},
		{"cached", 1_000_000, 20, 9000, 400, 6000, 0.2},
		{"memory", 60_000, 30, 3000, 400, 0, 0.2},
		{"behind the same prefix", 1_000_000, 20, 30_000, 50, 29_000, 0.1},
		{"full", 60_000, 60, 3000, 200, 2000, 0.25},
	} {
		t.Run(c.name, func(t *testing.T) {
			var off float64
			const rounds = 20
			for seed := range uint64(rounds) {
				rng := rand.New(rand.NewPCG(seed, 1))
				e := small(t, Config{KVTokens: c.kv, BlockSize: 16})
				prompt := func(i int) []uint32 {
					return append(seqTokens(1<<30, c.shared), seqTokens(i*100_000, c.prompt-c.shared)...)
				}
				for i := range c.n {
					submit(t, e, strconv.Itoa(i), prompt(i), 1+rng.IntN(c.output))
					for until := e.Now() + time.Duration(rng.IntN(20))*time.Millisecond; ; {
						at, busy := e.NextStep()
						if !busy || at > until {
							break
						}
						e.Step(at)
					}
				}
				r := FromTokens("x", prompt(c.n), 5, 16, 0)
				want := e.Estimate(e.Now(), &r)
				s := submit(t, e, "x", prompt(c.n), 5)
				for at, busy := e.NextStep(); busy; at, busy = e.NextStep() {
					e.Step(at)
				}
				res := s.Result()
				off += math.Abs(float64(want)/float64(res.TTFT()) - 1)
				t.Log(want, res.TTFT(), res.CachedTokens)
			}
			require.Less(t, off/rounds, c.most)
		})
	}
}
