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
