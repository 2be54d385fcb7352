package peers

import (
	"runtime"
	"testing"

	"github.com/llm-d/llm-d-kv-cache/pkg/kvcache/kvblock"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"

	"github.com/warmpath/warmpath/balancer/policy"
)

// A contender is one implementation of one kind of work.
type contender struct {
	name string
	run  func(b *testing.B)
}

// Names of the pairs in TestRatios.
const (
	ourTokens    = "tokens"
	ourText      = "text"
	llmdAll      = "llm-d"
	llmdHash     = "llm-d:hash"
	llmdLookup   = "llm-d:lookup"
	llmdScore    = "llm-d:score"
	theExtension = "extension"
)

// picks hash, look up and score a prompt of 8,192 tokens in a layout: warmpath and llm-d-kv-cache by token ids,
// warmpath and the inference extension by text.
func picks(l layout) []contender {
	asked := newPrompt(seeded(1), depth)
	return []contender{
		{ourTokens, func(b *testing.B) { benchmarkPick(b, newReported(b, false), l, asked) }},
		{llmdAll, func(b *testing.B) {
			x := newLLMD(b, false)
			arrange(x, l, asked)
			for b.Loop() {
				keys := x.hash(asked)
				x.score(keys, x.lookup(keys))
			}
		}},
		{llmdHash, func(b *testing.B) {
			x := newLLMD(b, false)
			for b.Loop() {
				x.hash(asked)
			}
		}},
		{llmdLookup, func(b *testing.B) {
			x := newLLMD(b, false)
			arrange(x, l, asked)
			keys := x.hash(asked)
			for b.Loop() {
				x.lookup(keys)
			}
		}},
		{llmdScore, func(b *testing.B) {
			x := newLLMD(b, false)
			arrange(x, l, asked)
			keys := x.hash(asked)
			found := x.lookup(keys)
			for b.Loop() {
				x.score(keys, found)
			}
		}},
		{ourText, func(b *testing.B) { benchmarkPick(b, newPredicted(b, false), l, asked) }},
		{theExtension, func(b *testing.B) {
			x := newExtension(b)
			arrange(x, l, asked)
			q := x.request("asked", asked)
			for b.Loop() {
				x.score(q)
			}
		}},
	}
}

func benchmarkPick(b *testing.B, x *ours, l layout, asked prompt) {
	arrange(x, l, asked)
	var q policy.Request
	for b.Loop() {
		x.pick(&q, asked)
	}
}

// A novelty is the data of one round: a prompt of 8,192 tokens for each of the 8 replicas, already hashed. Every
// index is full before.
type novelty struct {
	name   string
	known  bool // the same in every round, so the index already holds it
	shared bool // the same to every replica
}

var novelties = []novelty{
	{name: "new"},
	{name: "new-shared", shared: true},
	{name: "known", known: true, shared: true},
}

// adds are the ways to add: for warmpath reported events and routes, for the others their only one.
func adds(n novelty) []contender {
	return []contender{
		{ourTokens, func(b *testing.B) {
			x := newReported(b, n.shared)
			benchmarkAdd(b, n, x, x.report, func(_ int, p prompt) []uint64 { return hashes(p) })
		}},
		{llmdAll, func(b *testing.B) {
			x := newLLMD(b, n.shared)
			benchmarkAdd(b, n, x, x.insert, func(_ int, p prompt) []kvblock.BlockHash { return x.hash(p) })
		}},
		{ourText, func(b *testing.B) {
			x := newPredicted(b, n.shared)
			benchmarkAdd(b, n, x, x.routed, func(_ int, p prompt) *policy.Request {
				q := new(policy.Request)
				x.pick(q, p)
				return q
			})
		}},
		{theExtension, func(b *testing.B) {
			// On one processor, the goroutine that adds runs as soon as the test waits for it.
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			x := newExtension(b)
			benchmarkAdd(b, n, x, x.insert, func(replica int, p prompt) *scheduling.LLMRequest {
				q := x.request(replicaName(replica), p)
				x.score(q)
				return q
			})
		}},
	}
}

// benchmarkAdd fills an index with similar data, and measures additions.
func benchmarkAdd[H any](b *testing.B, n novelty, x adder, insert func(int, H), hash func(int, prompt) H) {
	rnd := seeded(4)
	var p prompt
	for i := range 1 + replicas*capacity/depth {
		if i%replicas == 0 || !n.shared {
			p = newPrompt(rnd, depth)
		}
		x.add(i%replicas, p, 0)
	}
	var round [replicas]prompt
	var hashed [replicas]H
	for first := true; b.Loop(); first = false {
		b.StopTimer()
		for r := range round {
			switch {
			case r > 0 && n.shared:
				round[r] = round[0]
			case first || !n.known:
				round[r] = newPrompt(rnd, depth)
			}
			hashed[r] = hash(r, round[r])
			if first && n.known {
				x.add(r, round[r], 0)
				hashed[r] = hash(r, round[r])
			}
		}
		b.StartTimer()
		for r, h := range hashed {
			insert(r, h)
		}
	}
}

func BenchmarkPick(b *testing.B) {
	for _, l := range layouts() {
		run(b, l.name, picks(l))
	}
}

func BenchmarkAdd(b *testing.B) {
	for _, n := range novelties {
		run(b, n.name, adds(n))
	}
}

func run(b *testing.B, name string, contenders []contender) {
	for _, c := range contenders {
		b.Run(name+"/"+c.name, func(b *testing.B) {
			b.ReportAllocs()
			c.run(b)
		})
	}
}
