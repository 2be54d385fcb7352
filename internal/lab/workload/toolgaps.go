package workload

import (
	"math"
	"math/rand/v2"
	"time"
)

// toolGaps is how long agents' tools run: the share of the gaps, between two bounds in seconds, within which their
// logarithms are even. 86.5 % are up to 1 s and 95.1 % up to 10 s, as measured for coding agents (vllm-router #285).
var toolGaps = []struct{ share, from, to float64 }{{0.865, 0.05, 1}, {0.086, 1, 10}, {0.049, 10, 300}}

// ToolGaps gives the requests of sessions the times of agents: a session starts at random within the time in which
// sessions start in the trace, and each later request comes after the one before, 25 ms for each token of its answer
// and the gap of a tool. Requests without a session keep their times.
func ToolGaps(rs []Request, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0x6a75))
	next, turns := make(map[string]time.Duration), make(map[string]int)
	last := time.Duration(0) // when the last session starts
	for i := range rs {
		if turns[rs[i].Session]++; turns[rs[i].Session] == 1 {
			last = rs[i].At
		}
	}
	clear(turns)
	for i := range rs {
		r := &rs[i]
		if r.Session == "" {
			continue
		}
		at, begun := next[r.Session]
		if !begun {
			at = time.Duration(rng.Float64() * float64(last))
		}
		r.At, r.Turn = at, turns[r.Session]
		turns[r.Session]++
		next[r.Session] = at + time.Duration(r.OutputTokens)*nominalToken + toolGap(rng)
	}
	Sort(rs)
}

// toolGap draws one gap.
func toolGap(rng *rand.Rand) time.Duration {
	x := rng.Float64()
	for _, g := range toolGaps {
		if x -= g.share; x < 0 {
			return time.Duration(g.from * math.Pow(g.to/g.from, rng.Float64()) * float64(time.Second))
		}
	}
	return time.Duration(toolGaps[len(toolGaps)-1].to * float64(time.Second))
}
