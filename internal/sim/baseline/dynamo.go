package baseline

import (
	"sort"

	"github.com/warmpath/warmpath/balancer/routing"
)

// dynamo is Dynamo's KV router, without temperature, credits of lower tiers and decay, as by default.
type dynamo struct {
	prompted
	scale  float64 // S
	active []active
}

// active is what this router has under way on one replica: how many requests have each block. Who has a block
// has all before it.
type active struct {
	blocks map[uint64]int
	tails  int // prompts that end in the middle of a block, each a block of its own
}

func newDynamo(f *Fleet, scale float64) *dynamo {
	p := &dynamo{prompted: prompted{f.contents, f.slots, f.block}, scale: scale, active: make([]active, f.replicas)}
	for i := range p.active {
		p.active[i].blocks = make(map[uint64]int)
	}
	return p
}

// shared is how many leading blocks are under way.
func (a *active) shared(blocks []uint64) int {
	return sort.Search(len(blocks), func(i int) bool { return a.blocks[blocks[i]] == 0 })
}

// Choose implements [routing.Policy].
func (p *dynamo) Choose(q *routing.Request, v *routing.View) routing.Decision {
	s := q.Prepared.(*found)
	bs := float64(p.block)
	whole := float64((q.PromptTokens + p.block - 1) / p.block)
	r := least(q, v, func(r *routing.Replica) float64 {
		a := &p.active[r.Index()]
		_, others := r.Foreign()
		raw := float64(r.QueuedTokens()+int(others)+q.PromptTokens) / bs
		decode := float64(len(a.blocks)+a.tails) + whole - float64(a.shared(s.blocks))
		return p.scale*max(0, raw-float64(s.depth[r.Index()])) + decode
	})
	return p.to(q, r, routing.ReasonKVCost)
}

// Routed implements [routing.RouteObserver].
func (p *dynamo) Routed(q *routing.Request, d routing.Decision) {
	a := &p.active[d.Replica.Index()]
	s, ok := q.Prepared.(*found)
	if !ok {
		return // pinned
	}
	for _, b := range s.blocks {
		a.blocks[b]++
	}
	if q.PromptTokens > len(s.blocks)*p.block {
		a.tails++
	}
}

// Completed implements [routing.CompletionObserver].
func (p *dynamo) Completed(q *routing.Request, d routing.Decision, _ routing.Outcome) {
	a := &p.active[d.Replica.Index()]
	s, ok := q.Prepared.(*found)
	if !ok {
		return // pinned
	}
	for _, b := range s.blocks {
		if a.blocks[b]--; a.blocks[b] == 0 {
			delete(a.blocks, b)
		}
	}
	if q.PromptTokens > len(s.blocks)*p.block {
		a.tails--
	}
}
