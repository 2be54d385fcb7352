package kvaware

import (
	"context"
	"fmt"
	"testing"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/routertest"
)

// BenchmarkRequest measures all that a request of 8,192 tokens costs the policy, from
// Prepare, hashing included, to Completed, where 8 replicas report the prompt.
func BenchmarkRequest(b *testing.B) {
	for _, n := range routertest.BenchmarkSizes[:4] {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			p := newPolicy(b, Config{}.WithDefaults())
			r := policytest.NewRouter(b, p.policy(), policytest.Fleet(n))
			v, ctx, prompt := r.View(), context.Background(), tokens(1, 8192)
			for _, rep := range v.Replicas()[:8] {
				report(r, rep.ID, 0, 0, prompt, 16)
			}
			var q policy.Request // the caller's memory
			b.ReportAllocs()
			for b.Loop() {
				q = policy.Request{}
				q.SetPrompt(policy.Prompt{Tokens: prompt})
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

// BenchmarkChoose measures Choose with the request prepared; burst: after picks of the
// same prompt.
func BenchmarkChoose(b *testing.B) {
	for _, burst := range []bool{false, true} {
		for _, n := range routertest.BenchmarkSizes {
			b.Run(fmt.Sprintf("burst=%t/n=%d", burst, n), func(b *testing.B) {
				p := newPolicy(b, Config{}.WithDefaults())
				r := policytest.NewRouter(b, p.policy(), policytest.Fleet(n))
				q := ask(tokens(1, 8192))
				r.Prepare(context.Background(), q)
				v := r.View()
				b.ReportAllocs()
				for b.Loop() {
					if !burst {
						q.Prepared.(*prepared).since = p.recent.picks
					}
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
