package policy_test

import (
	"fmt"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
)

// leastTokens picks the replica with the least prompt tokens to prefill.
type leastTokens struct {
	ForgiveTokens int `json:"forgive_tokens"`
}

func (p leastTokens) choose(q *policy.Request, v policy.View) policy.Decision {
	var best *policy.Replica
	for _, r := range v.Connected() {
		if v.Available(q, r) && (best == nil || r.QueuedTokens()+p.ForgiveTokens < best.QueuedTokens()) {
			best = r
		}
	}
	if best == nil {
		return policy.Wait()
	}
	return policy.To(best, "least_tokens")
}

func init() {
	policy.Register("least_tokens", func(p leastTokens) (policy.Policy, error) {
		return policy.Policy{Choose: p.choose}, nil
	})
}

func ExampleRegister() {
	config, err := policy.ParseConfig([]byte(`{"policy": {"least_tokens": {}}, "max_ongoing_requests": 64}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	rt, err := router.FromConfig(config, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(rt.Policy().Name)

	_, err = policy.ParseConfig([]byte(`{"policy": {"least_tokens": {"forgive": 1}}}`))
	fmt.Println(err)
	// Output:
	// least_tokens
	// config: policy.least_tokens: unknown field "forgive"
}
