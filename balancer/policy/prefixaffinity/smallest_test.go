package prefixaffinity

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/routertest"
)

// rayRouter is a Router with its policy.
type rayRouter struct {
	*router.Router
	p *affinity
}

// rays returns a Router with Ray's rule and lengths; a character of Ray's is a block here.
func rays(t *testing.T, change func(*Config), ids ...string) rayRouter {
	c := with(func(c *Config) { c.OnMiss, c.BlockTokens = OnMissSmallest, 1 })
	if change != nil {
		change(&c)
	}
	p := newPolicy(t, c)
	return rayRouter{policytest.NewRouter(t, p.policy(), policytest.Replicas(ids...)), p}
}

// cache makes a replica hold a prompt.
func cache(t *testing.T, r rayRouter, id, text string) {
	t.Helper()
	q := wide(text)
	routertest.Choose(t, r.Router, q)
	r.p.routed(q, policy.To(r.View().ByID(id), ""))
}

// wide returns a request whose text has one block for each character.
func wide(text string) *policy.Request {
	var b strings.Builder
	for _, c := range text {
		b.WriteString(strings.Repeat(string(c), policy.BytesPerToken))
	}
	return askText("%s", b.String())
}

// sent counts characters.
func sent(r rayRouter, id string) int64 {
	return r.p.caches.Member(r.View().ByID(id)).SentBytes.Load() / policy.BytesPerToken
}

// The cases of Ray's test_prefix_aware_request_router that state where a request
// goes. The others have no counterpart here:
//
//   - 0.5 s of delay in the tree does not block the loop, on_request_routed returns
//     at once: the index is in the process, nothing is called.
//   - the default threshold sends no probes and one lookup; cached queue lengths
//     beyond the threshold avoid the lookup: the loads are there, no replica is probed.
//   - the eviction loop starts at update_replicas and evicts each tenant by
//     characters: the index has one budget in bytes, on from the start.
//   - two deployments have trees of their own: each policy has its own index.
//   - what of a chat is the prompt: the dialect's matter.
func TestRaysPrefixRouter(t *testing.T) {
	ten := func(t *testing.T, r rayRouter, want string, text string) {
		t.Helper()
		for range 10 {
			assert.Equal(t, want, routertest.Choose(t, r.Router, wide(text)).Replica.ID)
		}
	}
	t.Run("no prompt: least busy", func(t *testing.T) {
		r := rays(t, nil, "r1", "r2")
		policytest.Fill(t, r.Router, "r1", 5)
		for range 10 {
			d := route(t, r.Router, &policy.Request{Session: "s"})
			assert.Equal(t, "r2", d.Replica.ID)
			assert.Equal(t, policy.ReasonNoKey, d.Reason)
		}
		assert.Zero(t, sent(r, "r1"))
		assert.Zero(t, sent(r, "r2"))
	})
	t.Run("imbalanced: the match is ignored", func(t *testing.T) {
		r := rays(t, func(c *Config) { c.ImbalancedThreshold = 2 }, "r1", "r2")
		cache(t, r, "r2", "hello world")
		policytest.Fill(t, r.Router, "r2", 10)
		ten(t, r, "r1", "hello world")
	})
	t.Run("high match", func(t *testing.T) {
		r := rays(t, nil, "r1", "r2")
		cache(t, r, "r2", "Hello")
		ten(t, r, "r2", "Hello world")
	})
	t.Run("low match: the smallest", func(t *testing.T) {
		r := rays(t, nil, "r1", "r2")
		cache(t, r, "r1", "hi")
		cache(t, r, "r2", "longtext")
		assert.EqualValues(t, 2, sent(r, "r1"))
		assert.EqualValues(t, 8, sent(r, "r2"))
		ten(t, r, "r1", "z")
	})
	t.Run("both empty: both are the smallest", func(t *testing.T) {
		r := rays(t, nil, "r1", "r2")
		ten(t, r, "r1", "hello")
		policytest.Fill(t, r.Router, "r1", 1)
		ten(t, r, "r2", "hello")
	})
	t.Run("what is routed is inserted", func(t *testing.T) {
		r := rays(t, nil, "r1")
		for range 3 {
			route(t, r.Router, wide("hello"))
		}
		assert.EqualValues(t, 5, sent(r, "r1"))
	})
	t.Run("removed during the lookup", func(t *testing.T) {
		r := rays(t, nil, "r1", "r2")
		cache(t, r, "r2", "hello world")
		q := wide("hello world")
		r.Prepare(t.Context(), q)
		policytest.SetFleet(r.Router, policytest.Replicas("r1"))
		assert.Equal(t, "r1", r.Policy().Choose(q, r.View()).Replica.ID)
	})
}

func TestSmallest(t *testing.T) {
	t.Run("the threshold itself is a match", func(t *testing.T) {
		r := rays(t, nil, "r1", "r2")
		cache(t, r, "r2", "a---------")
		assert.Equal(t, "r2", routertest.Choose(t, r.Router, wide("abcdefghij")).Replica.ID)
		assert.Equal(t, "r1", routertest.Choose(t, r.Router, wide("abcdefghijk")).Replica.ID)
	})
	t.Run("the rate is compared by dividing", func(t *testing.T) {
		r := rays(t, func(c *Config) { c.MatchRateThreshold = 0.07 }, "r1", "r2")
		cache(t, r, "r2", "1234567-")
		assert.Equal(t, "r2", routertest.Choose(t, r.Router, wide("1234567"+strings.Repeat("x", 93))).Replica.ID, "0.07*100 > 7")
	})
	t.Run("any imbalance", func(t *testing.T) {
		r := rays(t, func(c *Config) { c.ImbalancedThreshold = 0.5 }, "r1", "r2")
		cache(t, r, "r2", "hello world")
		assert.Equal(t, "r2", routertest.Choose(t, r.Router, wide("hello world")).Replica.ID)
		policytest.Fill(t, r.Router, "r2", 1)
		assert.Equal(t, "r1", routertest.Choose(t, r.Router, wide("hello world")).Replica.ID)
	})
	t.Run("of the longest matches the fewest ongoing", func(t *testing.T) {
		r := rays(t, nil, "r1", "r2", "r3")
		cache(t, r, "r1", "hello world")
		cache(t, r, "r2", "hello world")
		cache(t, r, "r3", "hello")
		assert.Equal(t, "r1", routertest.Choose(t, r.Router, wide("hello world")).Replica.ID)
		policytest.Fill(t, r.Router, "r1", 2)
		policytest.Fill(t, r.Router, "r2", 1)
		assert.Equal(t, "r2", routertest.Choose(t, r.Router, wide("hello world")).Replica.ID, "r3 holds less")
	})
	t.Run("a full holder is skipped", func(t *testing.T) {
		r := rays(t, nil, "r1", "r2")
		cache(t, r, "r2", "hello world")
		fleet := policytest.Bounded(policytest.Replicas("r1", "r2"), 1)
		policytest.SetFleet(r.Router, fleet)
		policytest.Fill(t, r.Router, "r2", 1)
		assert.Equal(t, "r1", routertest.Choose(t, r.Router, wide("hello world")).Replica.ID)
		policytest.Fill(t, r.Router, "r1", 1)
		assert.Nil(t, routertest.Choose(t, r.Router, wide("hello world")).Replica)
	})
	t.Run("threshold 0 without a match: all", func(t *testing.T) {
		r := rays(t, func(c *Config) { c.MatchRateThreshold = policy.Off }, "r1", "r2")
		cache(t, r, "r1", "hello")
		assert.Equal(t, "r1", routertest.Choose(t, r.Router, wide("z")).Replica.ID)
	})
}
