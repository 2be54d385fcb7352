package workload

import (
	"cmp"
	"fmt"
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
// same think times. Copy 0 is the original; copy k has k after a # in its ids and sessions, and a text prompt
// of it begins with a line of its own, one block long. Jitter afterwards, else the copies arrive together.
func Copies(rs []Request, n int) []Request {
	if n <= 1 {
		return rs
	}
	common := BlockSeed(0)
	out := make([]Request, 0, n*len(rs))
	for k := range n {
		for _, r := range rs {
			if k > 0 {
				suffix := "#" + strconv.Itoa(k)
				r.ID += suffix
				if r.Session != "" {
					r.Session += suffix
				}
				if r.Text != "" {
					line := "copy " + strconv.Itoa(k)
					r.Text = line + strings.Repeat(".", 63-len(line)) + "\n" + r.Text
					r.PromptTokens = textLen(r.Text)
				}
				segs := slices.Clone(r.Segments)
				for i := range segs {
					if segs[i].Seed != common {
						segs[i].Seed = copySeed(segs[i].Seed, uint64(k))
					}
				}
				r.Segments = segs
			}
			out = append(out, r)
		}
	}
	Sort(out)
	return out
}
