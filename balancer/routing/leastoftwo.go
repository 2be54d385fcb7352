package routing

// draws is how often LeastOfTwo draws from a pool before it scans it.
const draws = 8

// LeastOfTwo returns the one with fewer requests under way, as far as they are known
// (our bookings, those of other clients, what the replica reports), of two distinct available
// replicas drawn at random, or nil when none is available. It is the whole of
// power of two choices, and what other policies do with a request that lacks
// their key. The two come from the first pool that has anybody available; a
// tie goes to the one drawn first. O(1) as long as not most of a pool is
// unavailable, else O(pool). Does not allocate. Choose only.
func (v *View) LeastOfTwo(q *Request) *Replica {
	for i := 0; ; i++ {
		p, ok := v.Pool(q, i)
		if !ok {
			return nil
		}
		if r := p.leastOfTwo(); r != nil {
			return r
		}
	}
}

func (p Pool) leastOfTwo() *Replica {
	n := len(p.Replicas)
	if n <= 2 {
		return p.scanForTwo()
	}
	var first *Replica
	for range draws {
		r := p.Replicas[p.view.IntN(n)]
		switch {
		case r == first || !p.Takes(r):
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
func (p Pool) scanForTwo() *Replica {
	var two [2]*Replica
	found := 0
	for _, r := range p.Replicas {
		if !p.Takes(r) {
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

func fewerOngoing(first, second *Replica) *Replica {
	if second.underWay() < first.underWay() {
		return second
	}
	return first
}

// underWay returns how many requests are known to be under way, those of others too.
func (r *Replica) underWay() int64 {
	return r.live.book.Load()>>tokenBits + r.live.foreign.Load()>>tokenBits
}
