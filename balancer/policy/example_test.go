package policy_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
)

// leastTokens picks the replica with the least prompt tokens to prefill.
type leastTokens struct {
	ForgiveTokens int `json:"forgive_tokens"`
}

func (leastTokens) Prepare(context.Context, *policy.Request, policy.View) error { return nil }

func (p leastTokens) Choose(q *policy.Request, v policy.View) policy.Decision {
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
	policy.Register("least_tokens", func(raw json.RawMessage) (policy.Policy, error) {
		p := leastTokens{ForgiveTokens: 256}
		if err := policy.Decode(raw, &p); err != nil {
			return nil, err
		}
		return p, nil
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
	fmt.Printf("%+v\n", rt.Policy())

	_, err = policy.ParseConfig([]byte(`{"policy": {"least_tokens": {"forgive": 1}}}`))
	fmt.Println(err)
	// Output:
	// {ForgiveTokens:256}
	// config: policy.least_tokens: unknown field "forgive"
}
