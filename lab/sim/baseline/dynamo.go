package baseline

import (
	"slices"
	"sort"

	"github.com/warmpath/warmpath/balancer/policy"
)

// dynamo is Dynamo's KV router, without temperature, credits of lower tiers and decay, as by default.
type dynamo struct {
	informed
	scale  float64 // S
	active []active
}

func newDynamo(f *Fleet, scale float64) *dynamo {
	return &dynamo{informed: newInformed(f), scale: scale, active: make([]active, f.replicas)}
}

func (p *dynamo) policy() policy.Policy {
	all := p.informed.policy(p.choose, p.add)
	all.Observer.Completed = p.remove
	return all
}

func (p *dynamo) choose(q *policy.Request, v policy.View) policy.Decision {
	s := q.Prepared.(*found)
	bs := float64(p.block)
	whole := float64((q.PromptTokens + p.block - 1) / p.block)
	r := least(q, v, func(r *policy.Replica) float64 {
		a := &p.active[r.Index()]
		_, others := r.PeerLoad()
		raw := float64(r.QueuedTokens()+int(others)+q.PromptTokens) / bs
		decode := float64(a.blocks) + whole - float64(a.shared(s.blocks))
		return p.scale*max(0, raw-float64(s.depth[r.Index()])) + decode
	})
	return p.to(q, r, policy.ReasonKVCost)
}

// add counts the blocks of a request that was sent, unless it was pinned.
func (p *dynamo) add(q *policy.Request, d policy.Decision) {
	if s, ok := q.Prepared.(*found); ok {
		p.active[d.Replica.Index()].add(s)
	}
}

// remove is the end of what add counted.
func (p *dynamo) remove(q *policy.Request, d policy.Decision, _ policy.Outcome) {
	if s, ok := q.Prepared.(*found); ok {
		p.active[d.Replica.Index()].remove(s)
	}
}

// active is what this router has under way on one replica.
type active struct {
	prompts []*found
	blocks  int // different ones in these prompts, and the tail of each
}

// add counts a prompt: of its blocks those that no other has.
func (a *active) add(s *found) {
	a.blocks += len(s.blocks) - a.shared(s.blocks) + s.tail
	a.prompts = append(a.prompts, s)
}

// remove takes back an add.
func (a *active) remove(s *found) {
	i, last := slices.Index(a.prompts, s), len(a.prompts)-1
	a.prompts[i], a.prompts[last] = a.prompts[last], nil
	a.prompts = a.prompts[:last]
	a.blocks -= len(s.blocks) - a.shared(s.blocks) + s.tail
}

// shared is how many leading blocks are under way. Hashes are chained: prompts that have one block in common have all
// before it, too.
func (a *active) shared(blocks []uint64) int {
	most := 0
	for _, s := range a.prompts {
		if n := min(len(blocks), len(s.blocks)); n > most && blocks[most] == s.blocks[most] {
			most += sort.Search(n-most, func(i int) bool { return blocks[most+i] != s.blocks[most+i] })
		}
	}
	return most
}
