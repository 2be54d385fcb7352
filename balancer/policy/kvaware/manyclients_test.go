package kvaware

import (
	"container/list"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/internal/router"
)

// kvCache is the cache of one replica: an LRU of blocks.
type kvCache struct {
	size   int
	blocks map[uint64]*list.Element
	lru    list.List
}

// serve returns how many leading blocks were cached, and caches all.
func (c *kvCache) serve(blocks []uint64) (hit int) {
	for hit < len(blocks) && c.blocks[blocks[hit]] != nil {
		hit++
	}
	for i := len(blocks) - 1; i >= 0; i-- {
		b := blocks[i]
		if e := c.blocks[b]; e != nil {
			c.lru.MoveToFront(e)
			continue
		}
		c.blocks[b] = c.lru.PushFront(b)
		if c.lru.Len() > c.size {
			delete(c.blocks, c.lru.Remove(c.lru.Back()).(uint64))
		}
	}
	return hit
}

// conversation is a system prompt, one of three tool prompts for some, and turns that each contain all before.
type conversation struct {
	prompt []uint32
	left   int
}

// hits routes a workload of conversations by k clients that share nothing, each
// request from one of them at random, and returns the cached-token ratio and
// the busiest replica's share of computed tokens over the mean.
func hits(t *testing.T, k int, build func() policy.Policy) (ratio, imbalance float64) {
	const replicas, open, requests, under = 16, 120, 10_000, 64
	rnd := rand.New(rand.NewPCG(7, 7))
	clients := make([]*router.Router, k)
	for i := range clients {
		clients[i] = policytest.NewRouter(t, build(), policytest.Fleet(replicas))
	}
	caches := make(map[string]*kvCache)
	computed := make(map[string]int)
	for _, rep := range clients[0].View().Replicas() {
		caches[rep.ID] = &kvCache{size: 3000, blocks: make(map[uint64]*list.Element)}
	}
	system := tokens(0, 320)
	serial := 100
	begin := func() *conversation {
		serial++
		x := &conversation{prompt: append([]uint32(nil), system...), left: 1 + rnd.IntN(8)}
		if tool := rnd.IntN(6); tool < 3 {
			x.prompt = append(x.prompt, tokens(1+tool, 480)...)
		}
		return x
	}
	var talks [open]*conversation
	var held []*router.Reservation
	var cached, total int
	for i := range requests {
		at := rnd.IntN(open)
		if talks[at] == nil || talks[at].left == 0 {
			talks[at] = begin()
		}
		x := talks[at]
		x.left--
		serial++
		x.prompt = append(x.prompt, tokens(serial, 100+rnd.IntN(700))...)
		b := policytest.Pick(t, clients[rnd.IntN(k)], ask(x.prompt))
		blocks := kvindex.AppendTokens(nil, x.prompt, 16, 1337)
		hit := caches[b.Decision.Replica.ID].serve(blocks)
		if i > requests/3 {
			cached += hit
			total += len(blocks)
			computed[b.Decision.Replica.ID] += len(blocks) - hit
		}
		if held = append(held, b); len(held) > under {
			held[0].Release()
			held = held[1:]
		}
	}
	busiest := 0
	for _, n := range computed {
		busiest = max(busiest, n)
	}
	return float64(cached) / float64(total), float64(busiest) * replicas / float64(total-cached)
}

// blind is power of two choices.
func blind() policy.Policy {
	return policy.Policy{Choose: func(q *policy.Request, v policy.View) policy.Decision {
		return policy.To(v.LeastOfTwo(q), policy.ReasonLeastOfTwo)
	}}
}

func TestManyClients(t *testing.T) {
	affinity := func() policy.Policy { return newPolicy(t, Config{}.WithDefaults()).policy() }
	one, balance := hits(t, 1, affinity)
	t.Logf("1 client: %.3f, busiest %.2f × mean", one, balance)
	for _, k := range []int{8, 64} {
		many, balance := hits(t, k, affinity)
		t.Logf("%d clients: %.3f, busiest %.2f × mean", k, many, balance)
		assert.GreaterOrEqual(t, many, 0.85*one, "%d clients", k)
		assert.Less(t, balance, 1.5, "%d clients", k)
	}
	without, _ := hits(t, 64, blind)
	t.Logf("power of two: %.3f", without)
	assert.Less(t, without, one/2, "without sharing the ratio must fall, or the test could not fail")
}
