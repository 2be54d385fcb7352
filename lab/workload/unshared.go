package workload

import (
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/zeebo/xxh3"
)

// oneOffDelay is how long after the request that called for it a one-off arrives, in the mean.
const oneOffDelay = time.Second

// withOneOffs adds prompts that share nothing with others, each as long as some turn before it, until at
// every time at least this share of the prompt tokens is new. Conversations alone share more than most
// real traffic does: of 6 turns of chat an unbounded cache holds three quarters.
func withOneOffs(rs []Request, share float64, name string, end time.Duration, seed uint64) []Request {
	rng := rand.New(rand.NewPCG(seed, xxh3.HashString(name+"one-off")))
	seen := make(seen)
	owed := 0.0 // tokens of which there are too few, never below 0: a surplus is not kept for later
	for i, n := 0, len(rs); i < n; i++ {
		r := &rs[i]
		owed = max(owed+share*float64(r.PromptTokens)-float64(seen.add(r)), 0)
		for {
			like := &rs[rng.IntN(i+1)]
			pays := (1 - share) * float64(like.PromptTokens)
			if owed < pays {
				break
			}
			owed -= pays
			one := Request{
				ID: name + "x" + strconv.Itoa(len(rs)-n), At: r.At + time.Duration(rng.ExpFloat64()*float64(oneOffDelay)),
				PromptTokens: like.PromptTokens, OutputTokens: like.OutputTokens, Prefix: -1,
			}
			one.Segments = []Segment{{Seed: freshSeed(one.ID), Len: int32(one.PromptTokens)}}
			if one.At < end {
				rs = append(rs, one)
			}
		}
	}
	Sort(rs)
	return rs
}

// Unshared is the share of the prompt tokens that a cache without bound, common to all requests, would not
// hold when they arrive. Those before the first fill the cache and do not count. Segments count as wholes, texts
// in blocks of 16 tokens.
func Unshared(rs []Request, first int) float64 {
	seen := make(seen)
	total, fresh := 0, 0
	for i := range rs {
		if n := seen.add(&rs[i]); i >= first {
			total += rs[i].PromptTokens
			fresh += n
		}
	}
	if total == 0 {
		return 0
	}
	return float64(fresh) / float64(total)
}

// seen is the prefixes that requests and their answers left in a cache without bound.
type seen map[uint64]struct{}

// add returns how many tokens of the prompt are new, and remembers them and the answer.
func (s seen) add(r *Request) (fresh int) {
	if r.Text != "" {
		const block = 16
		hashes, tail := r.Hashes(nil, block, BaseHashSeed)
		for _, h := range hashes {
			if !s.put(h) {
				fresh += block
			}
		}
		return fresh + len(tail)
	}
	prefix := uint64(0)
	for _, g := range r.Segments {
		prefix = mix(prefix ^ mix(g.Seed+uint64(g.Len)*golden))
		if !s.put(prefix) {
			fresh += int(g.Len)
		}
	}
	s.put(mix(prefix ^ mix(OutputSeed(r.ID)+uint64(r.OutputTokens)*golden)))
	return fresh
}

// put remembers a prefix and reports whether it was there.
func (s seen) put(h uint64) bool {
	_, ok := s[h]
	s[h] = struct{}{}
	return ok
}
