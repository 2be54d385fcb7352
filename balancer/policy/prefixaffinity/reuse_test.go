package prefixaffinity

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/rendezvous"
)

// The cached tokens that engines report for prompts that this client has not sent there before decide how long the
// next one waits for the first replica of its rendezvous order.
func TestReuseIsLearnedFromRendezvousOnly(t *testing.T) {
	p := newPolicy(t, Config{}.WithDefaults())
	r := policytest.NewRouter(t, p.policy(), policytest.Fleet(4))
	end := func(q *policy.Request, usage policy.Usage) {
		b := policytest.Pick(t, r, q)
		b.Release()
		r.Complete(q, b.Decision, policy.Outcome{Sent: true, Usage: usage})
	}
	for i := range 50 {
		end(ask(tokens(i, 8_000)), policy.NoUsage)
	}
	unknown := new(rendezvous.Reuse).Share()
	assert.InDelta(t, unknown, p.reuse.Share(), 1e-9, "nothing was reported")
	for i := range 50 { // this client sent them there: no evidence of others
		end(ask(tokens(i, 8_000), tokens(100+i, 16)), policy.Usage{PromptTokens: 8_016, CachedTokens: 8_000})
	}
	assert.InDelta(t, unknown, p.reuse.Share(), 1e-9)
	for i := range 500 {
		end(ask(tokens(1000+i, 8_000)), policy.Usage{PromptTokens: 8_000})
	}
	assert.Less(t, p.reuse.Share(), 0.005)
}
