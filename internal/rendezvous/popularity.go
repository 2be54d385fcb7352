package rendezvous

import (
	"slices"
	"sort"
	"sync"
)

const (
	// window is how many requests one generation of counts lasts: what is
	// remembered is between one window and two.
	window = 2048
	// cells are the counters of one row; two rows and two generations of them
	// are 512 KiB.
	cells = 1 << 16
	// thorough is how many blocks a new client counts without need.
	thorough = cells / 4
	// Few is how many requests never make a block popular.
	Few = 3
	// sure, over the replicas, but at least leastSure, is how many requests distinguish one
	// half of a share from less: twice as many as sure have been seen by then.
	sure, leastSure = 160, Few + 1
	// fanout is in how many parts a level of the search cuts its range.
	fanout = 8
)

// Popularity counts in how many of the requests lately seen a block was, to find
// the first block that distinguishes a prompt.
//
// Hashes are chained, so a block is never more popular than the one before it,
// and the first unpopular one is found by search: among the ends of 1, 2, 4, 8, …
// blocks, then in eighths of the range that is left, down to one block. Only the
// blocks looked at are counted: 25 to 45 for a prompt of 8,192 tokens. Prompts with
// the same beginning are searched at the same places as long as they agree, so
// what is popular among them is counted by all of them. But a level can be
// searched only when the one above is decided, which takes some requests each.
//
// So the end of what more than Few requests have is searched as well: it is found
// from the fourth request on, is most often the end of the same prefix, and has
// counts when the prefix becomes popular. And the first requests of a client have
// all their blocks counted: a system prompt is found by the fourth, and by the
// second where that is another conversation. Later that would mislead: of a prefix from
// the generation before, only the places searched then have counts.
//
// Counters stand in two rows of fixed size (a count-min sketch with conservative
// update), so that a block can only be taken for more popular than it is, seldom
// and by little; the key is then a block too deep.
//
// It is safe for concurrent use. mu guards everything below it. It is held for the
// search of one prompt and taken last: no other lock is taken under it.
type Popularity struct {
	mu          sync.Mutex
	now, before *generation
	firsts      firsts // while all blocks are counted; none later
}

type generation struct {
	number   uint64
	requests int
	counted  int // blocks, without need
	rows     [2][cells]uint16
}

// NewPopularity returns one that has seen nothing.
func NewPopularity() *Popularity {
	return &Popularity{now: &generation{number: 1}, before: new(generation)}
}

// Requests returns how many requests are counted, lately as the counts are.
func (p *Popularity) Requests() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now.requests + p.before.requests
}

// Find returns the place of the first block of a prompt, which has at least one, that
// is in at most 1/replicas of the requests lately seen or in at most Few of them, and in a new
// client lies beyond what it shares with other conversations; and the place of the first that
// is in at most half as many, once these are enough to be sure, which lies deeper where the
// first has more than one replica should bear beside its other prompts. The last block if
// there is none. The prompt itself is one of those requests, and is not counted.
func (p *Popularity) Find(blocks []uint64, replicas int) (key, half int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.look(blocks, replicas, nil)
}

// see is Find for a prompt that is sent: it is counted.
func (p *Popularity) see(blocks []uint64, replicas int, s *steps) (key, half int) {
	if p.now.requests == window {
		p.now, p.before = p.before, p.now
		*p.now = generation{number: p.before.number + 1}
	}
	s.generation = p.now.number
	return p.look(blocks, replicas, s)
}

// look is Find, and counts where it gets steps.
func (p *Popularity) look(blocks []uint64, replicas int, s *steps) (key, half int) {
	requests := p.now.requests + 1 + p.before.requests
	replicas = max(replicas, 1)
	most := max(Few, requests/replicas)
	fewer := min(most, max(leastSure, sure/replicas, requests/(2*replicas)))
	if s != nil {
		p.now.requests++
	}
	if p.before.requests > 0 || p.now.counted+len(blocks) > thorough {
		if s != nil {
			p.firsts = nil
		}
		return p.search(blocks, most, fewer, s)
	}
	if s != nil {
		s.cells = slices.Grow(s.cells, 2*len(blocks))
	}
	key, half = p.scan(blocks, most, fewer, s)
	others := enough(requests, replicas)
	if others > 0 {
		key = max(key, min(p.firsts.common(blocks, others), len(blocks)-1))
	}
	if s != nil {
		s.all = true
		p.now.counted += len(blocks)
		if others > 0 {
			p.firsts = append(p.firsts, slices.Clone(blocks))
		} else {
			p.firsts = nil
		}
	}
	return key, max(key, half)
}

// scan looks at every block, and returns the first that is in at most so many
// requests, and in at most half as many.
func (p *Popularity) scan(blocks []uint64, most, half int, s *steps) (int, int) {
	first, second := 0, 0
	for i, b := range blocks {
		n := p.count(b, s)
		if n > most && first == i {
			first++
		}
		if n > half && second == i {
			second++
		}
	}
	last := len(blocks) - 1
	return min(first, last), min(second, last)
}

// search returns the same, and counts only the blocks it looks at: those around what it
// returns, and around the first that is in at most Few. All of a level are counted, also
// those behind the boundary.
func (p *Popularity) search(blocks []uint64, most, half int, s *steps) (int, int) {
	bs := [...]boundary{{most: most}, {most: half}, {most: Few}}
	end := 1
	for ; end <= len(blocks); end *= 2 {
		n := p.count(blocks[end-1], s)
		for i := range bs {
			bs[i].open(end, n)
		}
	}
	for i := range bs {
		bs[i].shut(end)
	}
	for left := bs[:]; len(left) > 0; {
		n := 1 // how many are searched in the same range: they lie one behind the other
		for n < len(left) && left[n].lo == left[0].lo && left[n].size == left[0].size {
			n++
		}
		if left[0].size > 1 {
			p.narrow(blocks, left[:n], s)
		} else {
			left = left[n:]
		}
	}
	last := len(blocks) - 1
	return min(bs[0].lo, last), min(bs[1].lo, last)
}

// A boundary is searched between blocks: a prefix of lo of them is in more than most
// requests; one of lo+size is not, or is beyond the prompt. size is 0 until one is
// found that is not.
type boundary struct{ most, lo, size int }

// open takes the next prefix of the first level, which is in n requests.
func (b *boundary) open(end, n int) {
	switch {
	case b.size > 0:
	case n > b.most:
		b.lo = end
	default:
		b.size = end - b.lo
	}
}

// shut ends the first level: the next prefix would be beyond the prompt.
func (b *boundary) shut(end int) {
	if b.size == 0 {
		b.size = end - b.lo
	}
}

// narrow counts the parts of a range in which one boundary or two are searched.
func (p *Popularity) narrow(blocks []uint64, bs []boundary, s *steps) {
	lo, size := bs[0].lo, bs[0].size
	step := max(1, size/fanout)
	for end := lo + step; end < lo+size && end <= len(blocks); end += step {
		n := p.count(blocks[end-1], s)
		for i := range bs {
			if n > bs[i].most && bs[i].lo == end-step {
				bs[i].lo = end
			}
		}
	}
	for i := range bs {
		bs[i].size = step
	}
}

// count returns in how many requests a hash is, this one included, and counts it where
// it gets steps.
func (p *Popularity) count(hash uint64, s *steps) int {
	cell := [2]uint64{hash % cells, hash >> 32 % cells}
	n := &p.now.rows
	least := min(n[0][cell[0]], n[1][cell[1]])
	if s != nil {
		for row, at := range cell {
			if n[row][at] == least {
				n[row][at]++
				s.cells = append(s.cells, uint32(row*cells)+uint32(at))
			}
		}
	}
	return int(least) + 1 + int(min(p.before.rows[0][cell[0]], p.before.rows[1][cell[1]]))
}

// fresh is how many first prompts are kept, at most.
const fresh = 64

// enough is how many other conversations with the same prefix show a client that has seen
// so many requests that the prefix is more than one replica should bear; 0 = they are
// counted like any requests by now. Of prefixes in half of their share, 1/2N, one in five
// would be taken for such.
func enough(requests, replicas int) int {
	switch {
	case requests > fresh:
		return 0
	case 2*requests <= replicas:
		return 1
	case 2*requests <= 3*replicas:
		return 2
	}
	return 0
}

// firsts are the prompts that a new client has seen. Two that begin alike and go on
// differently are two conversations, and not two turns of one. That shows a common prefix
// at the second request, where their number alone shows it at the fourth: 64 clients that
// each send three requests down one rendezvous order would overload its first replica for
// minutes.
type firsts [][]uint64

// common returns how many leading blocks a prompt has in common with at least so many
// others that went on differently.
func (f firsts) common(blocks []uint64, others int) int {
	var few [fresh]int
	common := few[:0]
	for _, o := range f {
		full := min(len(o), len(blocks)) - 1 // the last follows the full ones: another turn has another
		if n := sort.Search(full, func(i int) bool { return o[i] != blocks[i] }); n < full {
			common = append(common, n)
		}
	}
	if len(common) < others {
		return 0
	}
	slices.Sort(common)
	return common[len(common)-others]
}

// without returns the prompts without the latest that is this one.
func (f firsts) without(blocks []uint64) firsts {
	for i, o := range slices.Backward(f) {
		if slices.Equal(o, blocks) {
			return slices.Delete(f, i, i+1)
		}
	}
	return f
}

// steps are what counting one prompt changed, so that it can be taken back exactly.
type steps struct {
	generation uint64
	cells      []uint32 // row · cells + place
	all        bool     // every block was counted
}

// allSteps keeps the memory of steps, which is needed from Sent to Ended only.
var allSteps = sync.Pool{New: func() any { return new(steps) }}

// unsee takes back what a prompt added.
func (p *Popularity) unsee(blocks []uint64, s *steps) {
	g := p.now
	if g.number != s.generation {
		g = p.before
	}
	if g.number != s.generation {
		return // forgotten meanwhile
	}
	for _, c := range s.cells {
		g.rows[c/cells][c%cells]--
	}
	g.requests--
	if s.all {
		g.counted -= len(blocks)
		p.firsts = p.firsts.without(blocks)
	}
}

// Counted is a prompt that counts once, however many attempts its request makes, and not at
// all if none is sent. The zero value is ready. It belongs to one goroutine at a time.
type Counted struct {
	blocks   []uint64
	replicas int
	steps    *steps // of the attempt that counted; nil once it has ended
	counted  bool
}

// Find is [Popularity.Find] for the prompt, which has at least one block.
func (c *Counted) Find(p *Popularity, blocks []uint64, replicas int) (key, half int) {
	c.blocks, c.replicas = blocks, replicas
	return p.Find(blocks, replicas)
}

// Sent counts the prompt as an attempt is routed.
func (c *Counted) Sent(p *Popularity) {
	if c.counted || len(c.blocks) == 0 {
		return
	}
	c.counted, c.steps = true, allSteps.Get().(*steps)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.see(c.blocks, c.replicas, c.steps)
}

// Ended ends the attempt.
func (c *Counted) Ended(p *Popularity, sent bool) {
	if c.steps == nil {
		return
	}
	if !sent {
		p.mu.Lock()
		p.unsee(c.blocks, c.steps)
		p.mu.Unlock()
		c.counted = false
	}
	c.steps.cells, c.steps.all = c.steps.cells[:0], false
	allSteps.Put(c.steps)
	c.steps = nil
}
