package rendezvous

import (
	"math"
	"slices"
	"sort"
	"sync"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvindex"
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
	// fresh is how many first prompts are kept, at most.
	fresh = 64
	// Few is how many requests never make a block popular.
	Few = 3
	// spare is how many more prefixes than replicas are popular, at most. A prefix in more than half of a replica's share
	// is too much for one that has others beside it; in a large fleet that would be the turns of one conversation.
	spare = 6
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
	thorough    int    // how many blocks may still be counted without need
	firsts      firsts // while all blocks are counted; none later
}

type generation struct {
	number   uint64
	requests int
	rows     [2][cells]uint16
}

// NewPopularity returns one that has seen nothing.
func NewPopularity() *Popularity {
	return &Popularity{now: &generation{number: 1}, before: new(generation), thorough: thorough}
}

// A Prompt is a request as a policy keeps it: its blocks and its key. It counts once,
// however many attempts its request makes, and not at all if none is sent. The zero value
// is ready. It must not be copied, and belongs to one goroutine at a time.
type Prompt struct {
	Blocks
	Key uint64 // of the rendezvous order
	// First is the place of the first block that is in at most 1/(N+min(N, spare)) of the requests
	// lately seen or in at most Few of them, and in a new client lies beyond what the prompt
	// shares with other conversations. The last block if there is none.
	First int

	all        bool // Find looked at all blocks
	replicas   int
	generation uint64  // in which it is counted; 0 = it is not
	looked     *[]look // the blocks that Find looked at; nil once they are counted for good
}

// A look is a block of a prompt, and a bit for each row of counters in which it is counted.
type look struct {
	block int32
	rows  uint8
}

// looks has memory for prompts under way.
var looks = sync.Pool{New: func() any { return new([]look) }}

// Read cuts the prompt of a request and finds its key, for so many replicas. Without a
// prompt the session is the key.
func (p *Popularity) Read(s *Prompt, q *policy.Request, g Grain, seed kvindex.Seed, replicas int) {
	s.Tokens = q.PromptTokens
	switch {
	case !q.Prompt.Empty():
		s.Cut(q.Prompt, q.PromptTokens, g, seed)
		p.Find(s, replicas)
		s.Key = s.Hashes[s.First]
	case q.Session != "":
		s.Key = SessionKey(q.Affinity())
	}
}

// Find finds First of a prompt, which has at least one block. The prompt itself
// is one of the requests, and is not counted. It is called once for a prompt.
func (p *Popularity) Find(s *Prompt, replicas int) {
	s.replicas, s.looked = max(replicas, 1), looks.Get().(*[]look)
	p.mu.Lock()
	defer p.mu.Unlock()
	requests := p.now.requests + 1 + p.before.requests
	share := float64(requests) / float64(s.replicas+min(s.replicas, spare))
	// By chance the turns of one conversation are above that share of few requests, and their key would change with each:
	// a standard deviation is allowed.
	most := max(Few, int(share+math.Sqrt(share)))
	s.all = p.before.requests == 0 && p.thorough >= len(s.Hashes)
	s.First = p.search(s, most, s.all)
	if s.all {
		s.First = max(s.First, min(p.firsts.common(s.Hashes, enough(requests, s.replicas)), len(s.Hashes)-1))
	}
}

// Sent counts a prompt as an attempt is routed: the blocks that Find looked at.
func (p *Popularity) Sent(s *Prompt) {
	if s.generation != 0 || s.looked == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now.requests == window {
		p.now, p.before = p.before, p.now
		*p.now = generation{number: p.before.number + 1}
	}
	s.generation = p.now.number
	for i, l := range *s.looked {
		(*s.looked)[i].rows = p.now.add(s.Hashes[l.block])
	}
	p.now.requests++
	if s.all {
		p.thorough -= len(s.Hashes)
	}
	if s.all && enough(p.now.requests+p.before.requests, s.replicas) > 0 {
		p.firsts = append(p.firsts, slices.Clone(s.Hashes))
	} else {
		p.firsts = nil
	}
}

// Ended ends the attempt that counted. If it was not sent, what it counted is taken back.
func (p *Popularity) Ended(s *Prompt, sent bool) {
	switch {
	case s.looked == nil, !sent && s.generation == 0:
	case sent:
		*s.looked = (*s.looked)[:0]
		looks.Put(s.looked)
		s.looked = nil
	default:
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, g := range [...]*generation{p.now, p.before} {
			if g.number == s.generation { // else forgotten meanwhile
				for _, l := range *s.looked {
					g.remove(s.Hashes[l.block], l.rows)
				}
				g.requests--
				p.firsts = p.firsts.without(s.Hashes)
			}
		}
		if s.all {
			p.thorough += len(s.Hashes)
		}
		s.generation = 0
	}
}

// A boundary is searched between blocks: a prefix of lo of them is in more than most
// requests; one of lo+size is not, or is beyond the prompt.
type boundary struct{ most, lo, size int }

// search returns the first block that is in at most so many requests. It looks at all blocks, or at those around what
// it returns and around the first that is in at most Few: all of a level, also those behind the boundary.
func (p *Popularity) search(s *Prompt, most int, all bool) int {
	bs := [...]boundary{{most: most}, {most: Few}}
	p.level(s, bs[:], len(s.Hashes)+1, func(end int) int {
		if all {
			return end + 1
		}
		return max(1, 2*end)
	})
	for i := range bs {
		if bs[i].size = 1; !all {
			bs[i].size = max(1, bs[i].lo)
		}
	}
	for left := bs[:]; len(left) > 0; {
		b := left[0]
		n := 1 // how many are searched in the same range: they lie one behind the other
		for n < len(left) && left[n].lo == b.lo && left[n].size == b.size {
			n++
		}
		if b.size == 1 {
			left = left[n:]
			continue
		}
		step := max(1, b.size/fanout)
		p.level(s, left[:n], b.lo+b.size, func(end int) int { return end + step })
		for i := range left[:n] {
			left[i].size = step
		}
	}
	return min(bs[0].lo, len(s.Hashes)-1)
}

// level looks at the prefixes that end before to, each the next of the one before, from
// where the boundaries are.
func (p *Popularity) level(s *Prompt, bs []boundary, to int, next func(end int) int) {
	before := bs[0].lo
	for end := next(before); end < min(to, len(s.Hashes)+1); end = next(end) {
		*s.looked = append(*s.looked, look{block: int32(end - 1)})
		n := p.now.count(s.Hashes[end-1]) + p.before.count(s.Hashes[end-1]) + 1 // with this one
		for i := range bs {
			if n > bs[i].most && bs[i].lo == before {
				bs[i].lo = end
			}
		}
		before = end
	}
}

// cellsOf returns the counters of a block, by row.
func cellsOf(hash uint64) [2]uint64 { return [...]uint64{hash % cells, hash >> 32 % cells} }

// count returns in how many requests of the generation a block is.
func (g *generation) count(hash uint64) int {
	at := cellsOf(hash)
	return int(min(g.rows[0][at[0]], g.rows[1][at[1]]))
}

// add counts a block, and returns the rows in which it did.
func (g *generation) add(hash uint64) (rows uint8) {
	least := uint16(g.count(hash))
	for row, at := range cellsOf(hash) {
		if g.rows[row][at] == least {
			g.rows[row][at]++
			rows |= 1 << row
		}
	}
	return rows
}

// remove takes back what add counted in these rows.
func (g *generation) remove(hash uint64, rows uint8) {
	for row, at := range cellsOf(hash) {
		g.rows[row][at] -= uint16(rows >> row & 1)
	}
}

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
// others that went on differently; 0 for 0 others.
func (f firsts) common(blocks []uint64, others int) int {
	var most [3]int // of 1 other and of 2
	for _, o := range f {
		full := min(len(o), len(blocks)) - 1 // the last follows the full ones: another turn has another
		if n := sort.Search(full, func(i int) bool { return o[i] != blocks[i] }); n < full {
			most[1], most[2] = max(most[1], n), max(most[2], min(most[1], n))
		}
	}
	return most[others]
}

// without returns the prompts without one that is this.
func (f firsts) without(blocks []uint64) firsts {
	if i := slices.IndexFunc(f, func(o []uint64) bool { return slices.Equal(o, blocks) }); i >= 0 {
		return slices.Delete(f, i, i+1)
	}
	return f
}
