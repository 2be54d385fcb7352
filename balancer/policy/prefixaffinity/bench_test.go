package prefixaffinity

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/routertest"
)

// BenchmarkRequest measures all that a request costs the policy: Prepare, hashing
// included, Choose, Routed and Completed, on a fleet of 16 of which 8 hold the prompt.
func BenchmarkRequest(b *testing.B) {
	for _, bb := range []struct {
		name   string
		prompt policy.Prompt
	}{
		{"text=128B", policy.Prompt{Text: strings.Repeat("x", 128)}},
		{"text=32KiB", policy.Prompt{Text: strings.Repeat("x", 32<<10)}},
		{"tokens=8192", policy.Prompt{Tokens: tokens(1, 8192)}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			p := newPolicy(b, Config{}.WithDefaults())
			r := policytest.NewRouter(b, p.policy(), policytest.Fleet(16))
			v, ctx := r.View(), context.Background()
			for _, rep := range v.Replicas()[:8] {
				var q policy.Request
				q.SetPrompt(bb.prompt)
				r.Prepare(ctx, &q)
				p.routed(&q, policy.To(rep, ""))
			}
			var q policy.Request // the caller's memory
			b.ReportAllocs()
			for b.Loop() {
				q = policy.Request{}
				q.SetPrompt(bb.prompt)
				if err := p.prepare(ctx, &q, v); err != nil {
					b.Fatal(err)
				}
				d := p.choose(&q, v)
				p.routed(&q, d)
				p.completed(&q, d, policy.Outcome{Sent: true, Usage: policy.NoUsage})
			}
		})
	}
}

// BenchmarkPrepare measures it by fleet size, for a prompt of 1,024 tokens that
// no replica holds.
func BenchmarkPrepare(b *testing.B) {
	for _, n := range routertest.BenchmarkSizes {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			p := newPolicy(b, Config{}.WithDefaults())
			v := policytest.NewRouter(b, p.policy(), policytest.Fleet(n)).View()
			prompt := policy.Prompt{Tokens: tokens(1, 1024)}
			b.ReportAllocs()
			for b.Loop() {
				var q policy.Request
				q.SetPrompt(prompt)
				if err := p.prepare(context.Background(), &q, v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkChoose measures Choose with the request prepared. spill: half of the
// fleet, the first of the order, is above the bound.
func BenchmarkChoose(b *testing.B) {
	for _, spill := range []bool{false, true} {
		for _, n := range routertest.BenchmarkSizes {
			b.Run(fmt.Sprintf("spill=%t/n=%d", spill, n), func(b *testing.B) {
				p := newPolicy(b, Config{}.WithDefaults())
				r := policytest.NewRouter(b, p.policy(), policytest.Fleet(n))
				q := ask(tokens(1, 1024))
				r.Prepare(context.Background(), q)
				if spill {
					for _, id := range order(q.Prepared.(*prepared).Key, r.View().Replicas())[:n/2] {
						policytest.Pick(b, r, &policy.Request{Pin: id, PromptTokens: 100_000})
					}
				}
				v := r.View()
				b.ReportAllocs()
				for b.Loop() {
					p.choose(q, v)
				}
			})
		}
	}
}

// BenchmarkRouter measures whole picks through the Router.
func BenchmarkRouter(b *testing.B) {
	policytest.Benchmark(b, func() policy.Policy { return newPolicy(b, Config{}.WithDefaults()).policy() })
}
