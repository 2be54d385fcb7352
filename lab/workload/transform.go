package workload

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Sort orders requests by arrival; those that arrive together keep their order.
func Sort(rs []Request) {
	slices.SortStableFunc(rs, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
}

// ScaleRate divides every arrival by rate: 2 makes a workload arrive twice as fast. It panics unless rate
// is positive.
func ScaleRate(rs []Request, rate float64) {
	if !(rate > 0) {
		panic(fmt.Sprintf("workload: rate scale %v is not positive", rate))
	}
	for i := range rs {
		rs[i].At = time.Duration(float64(rs[i].At) / rate)
	}
}

// Jitter delays every arrival by a time drawn evenly from [0, within) and sorts. It dissolves the bursts of
// traces whose timestamps were rounded.
func Jitter(rs []Request, within time.Duration, seed uint64) {
	if within <= 0 {
		return
	}
	rng := rand.New(rand.NewPCG(seed, 0x717e4))
	for i := range rs {
		rs[i].At += time.Duration(rng.Int64N(int64(within)))
	}
	Sort(rs)
}

// Copies overlays n copies of a workload that share nothing but a trace's block 0, for more load with the
// same think times. Copy 0 is the original; see [Copy]. Jitter afterwards, else the copies arrive together.
func Copies(rs []Request, n int) []Request {
	if n <= 1 {
		return rs
	}
	out := make([]Request, 0, n*len(rs))
	for k := range n {
		out = append(out, Copy(rs, k)...)
	}
	Sort(out)
	return out
}

// Copy is copy k of a workload, which shares nothing with other copies but a trace's block 0. Copy 0 is the
// original; copy k has k after a # in its ids and sessions, and a text prompt of it begins with a line of its
// own, one block long.
func Copy(rs []Request, k int) []Request {
	if k == 0 {
		return rs
	}
	common := BlockSeed(0)
	suffix := "#" + strconv.Itoa(k)
	out := slices.Clone(rs)
	for i := range out {
		r := &out[i]
		r.ID += suffix
		if r.Session != "" {
			r.Session += suffix
		}
		if r.Text != "" {
			line := "copy " + strconv.Itoa(k)
			r.Text = line + strings.Repeat(".", 63-len(line)) + "\n" + r.Text
			r.PromptTokens = textLen(r.Text)
		}
		r.Segments = slices.Clone(r.Segments)
		for j := range r.Segments {
			if r.Segments[j].Seed != common {
				r.Segments[j].Seed = copySeed(r.Segments[j].Seed, uint64(k))
			}
		}
	}
	return out
}

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
