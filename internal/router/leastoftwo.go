package router

import (
	"math/rand/v2"

	"github.com/warmpath/warmpath/balancer/policy"
)

// draws is how often LeastOfTwo draws from a pool before it scans it.
const draws = 8

func (v *view) LeastOfTwo(q *policy.Request) *policy.Replica {
	for i := 0; ; i++ {
		p, _, ok := v.pool(q, i)
		if !ok {
			return nil
		}
		if r := p.leastOfTwo(); r != nil {
			return r
		}
	}
}

func (p *pool) leastOfTwo() *policy.Replica {
	n := len(p.replicas)
	if n <= 2 {
		return p.scanForTwo()
	}
	var first *policy.Replica
	for range draws {
		r := p.replicas[p.view.IntN(n)]
		switch {
		case r == first || !p.takes(r):
		case first == nil:
			first = r
		default:
			return fewerOngoing(first, r)
		}
	}
	return p.scanForTwo()
}

// scanForTwo draws two uniformly from those the pool takes, in random order, in
// one pass (reservoir sampling).
func (p *pool) scanForTwo() *policy.Replica {
	var two [2]*policy.Replica
	found := 0
	for _, r := range p.replicas {
		if !p.takes(r) {
			continue
		}
		at := found
		found++
		if found > 2 {
			at = p.view.IntN(found)
		}
		if at < 2 {
			two[at] = r
		}
	}
	if found < 2 {
		return two[0]
	}
	if p.view.IntN(2) == 1 {
		two[0], two[1] = two[1], two[0]
	}
	return fewerOngoing(two[0], two[1])
}

func fewerOngoing(first, second *policy.Replica) *policy.Replica {
	if second.State().UnderWay() < first.State().UnderWay() {
		return second
	}
	return first
}

func (v *view) QuickLeastOfTwo() *policy.Replica {
	n := uint64(len(v.connected))
	if n < 3 || len(v.near[0])+len(v.near[1]) > 0 {
		return nil
	}
	x := rand.Uint64()
	i, j := x>>32*n>>32, x&(1<<32-1)*(n-1)>>32
	if j >= i {
		j++
	}
	r, other := v.connected[i], v.connected[j]
	if other.State().UnderWay() < r.State().UnderWay() {
		r, other = other, r
	}
	if r.Draining || !other.Open() { // Quick.Pick checks the rest of r
		return nil
	}
	return r
}
