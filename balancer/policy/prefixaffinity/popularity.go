package prefixaffinity

import "sync"

const (
	// window is how many requests one generation of counts lasts: what is
	// remembered is between one window and two.
	window = 2048
	// cells are the counters of one row; two rows and two generations of them
	// are 512 KiB.
	cells = 1 << 16
	// thorough is how many blocks a new client counts without need.
	thorough = cells / 4
	// few is how many requests, or holders, never make a block popular.
	few = 3
	// fanout is in how many parts a level of the search cuts its range.
	fanout = 8
)

// popularity counts in how many of the requests lately seen a block was, to find
// the first block that distinguishes a prompt.
//
// Hashes are chained, so a block is never more popular than the one before it,
// and the first unpopular one is found by search: among the ends of 1, 2, 4, 8, …
// blocks, then in eighths of the range that is left, down to one block. Only the
// blocks looked at are counted: about 25 for a prompt of 8,192 tokens. Prompts with
// the same beginning are searched at the same places as long as they agree, so
// what is popular among them is counted by all of them. But a level can be
// searched only when the one above is decided, which takes some requests each; so
// the first requests of a client have all their blocks counted, and it has learnt
// a system prompt by the fourth. Later that would mislead: of a prefix known from
// the generation before, only the places searched then have counts.
//
// Counters stand in two rows of fixed size (a count-min sketch with conservative
// update), so that a block can only be taken for more popular than it is, seldom
// and by little; the key is then a block too deep.
//
// mu guards everything below it. It is held for the search of one prompt and
// taken last: no other lock is taken under it.
type popularity struct {
	mu          sync.Mutex
	now, before *generation
}

type generation struct {
	requests int
	counted  int // blocks, without need
	rows     [2][cells]uint16
}

func newPopularity() *popularity {
	return &popularity{now: new(generation), before: new(generation)}
}

// see counts a prompt, of at least one block, and returns the place of the first
// block that is in at most 1/replicas of the requests lately seen or in at most
// few of them; the last if there is none.
func (p *popularity) see(blocks []uint64, replicas int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now.requests == window {
		p.now, p.before = p.before, p.now
		*p.now = generation{}
	}
	p.now.requests++
	most := max(few, (p.now.requests+p.before.requests)/max(replicas, 1))

	if p.before.requests == 0 && p.now.counted+len(blocks) <= thorough {
		p.now.counted += len(blocks)
		return p.scan(blocks, most)
	}
	return p.search(blocks, most)
}

// scan counts every block, and returns the first that is in at most so many
// requests.
func (p *popularity) scan(blocks []uint64, most int) int {
	first := 0
	for i, b := range blocks {
		if p.count(b) > most && first == i {
			first++
		}
	}
	return min(first, len(blocks)-1)
}

// search returns the same, and counts only the blocks it looks at. All of a level
// are counted, also those behind the first unpopular one.
func (p *popularity) search(blocks []uint64, most int) int {
	n := len(blocks)
	popular := func(end int) bool { return p.count(blocks[end-1]) > most } // a prefix of so many blocks
	lo, size, end := 0, 0, 1                                               // lo is popular, lo+size not, or it is beyond the prompt
	for ; end <= n; end *= 2 {
		if yes := popular(end); size > 0 {
			continue
		} else if yes {
			lo = end
		} else {
			size = end - lo
		}
	}
	if size == 0 {
		size = end - lo
	}
	for size > 1 {
		step := max(1, size/fanout)
		next := lo
		for end := lo + step; end < lo+size && end <= n; end += step {
			if popular(end) && next == end-step {
				next = end
			}
		}
		lo, size = next, step
	}
	return min(lo, n-1)
}

// count adds one to a hash and returns in how many requests it was.
func (p *popularity) count(hash uint64) int {
	i, j := hash%cells, hash>>32%cells
	a, b := &p.now.rows[0][i], &p.now.rows[1][j]
	least := min(*a, *b)
	if *a == least {
		*a++
	}
	if *b == least {
		*b++
	}
	return int(least) + 1 + int(min(p.before.rows[0][i], p.before.rows[1][j]))
}
