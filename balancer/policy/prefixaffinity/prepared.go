package prefixaffinity

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/warmpath/warmpath/balancer/kvindex"
	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/zeebo/xxh3"
)

const (
	// maxHolders bounds the holders kept with a request. Those behind them are
	// found by the agreed order, in which a prefix fans out anyway.
	maxHolders = 32
	// short is how many blocks and holders need no memory of their own.
	short = 8
)

// prepared is what Prepare leaves with a request. What is read from the prompt
// stays for all attempts; what is found for it is found again for another fleet.
type prepared struct {
	// Read from the prompt, once.
	blocks []uint64 // with what follows the last full block as the last
	block  int      // bytes or tokens per block
	length int      // of the prompt, in the same unit
	unit   int      // bytes, or 1, per token
	tokens int      // of the prompt
	key    uint64   // of the agreed order
	common int      // blocks before the distinguishing one

	// Found for a fleet.
	fleet   *fleet
	top     [head]place // the beginning of the agreed order
	ntop    int
	holders []place // that match, the deepest first, else in the agreed order
	// found holds the scores and depths of every replica, from Prepare to Routed
	// and where top is not the whole fleet only. A later attempt that needs more
	// than top and holders computes the scores again, and knows no depth.
	found *scratch

	fewBlocks  [short]uint64
	fewHolders [short]place
}

// scratch is the memory of one search, used again and again.
type scratch struct {
	scorer
	matches kvindex.Matches
	scores  []uint64 // by place in the fleet
}

// read hashes the prompt and finds the key. It returns nil where there is none.
func (p *Policy) read(q *routing.Request, v *routing.View) *prepared {
	if q.Prompt.Empty() && (q.Session == "" || p.ray) {
		return nil
	}
	s := &prepared{tokens: q.PromptTokens}
	if !q.Prompt.Empty() {
		seed := kvindex.SeedFor(q.Model, q.Adapter, q.CacheSalt)
		s.hash(q.Prompt, p.config, seed, !p.ray)
		if p.ray {
			return s
		}
		s.common = p.popularity.see(s.blocks, len(v.Replicas()))
		s.key = s.blocks[s.common]
	}
	if q.Session != "" && (p.config.StickySessions || q.Prompt.Empty()) {
		s.key = xxh3.HashStringSeed(q.Session, agreedSeed)
	}
	return s
}

// hash cuts and hashes the prompt.
func (s *prepared) hash(prompt routing.Prompt, c Config, seed kvindex.Seed, tail bool) {
	s.block, s.length, s.unit = c.BlockTokens, len(prompt.Tokens), 1
	if s.length == 0 {
		s.block, s.length, s.unit = c.BlockBytes, len(prompt.Text), routing.BytesPerToken
	}
	full := s.length / s.block
	s.blocks = s.fewBlocks[:0]
	if full+1 > short {
		s.blocks = make([]uint64, 0, full+1)
	}
	from := full * s.block
	switch text := len(prompt.Tokens) == 0; {
	case text && tail:
		s.blocks = kvindex.AppendText(s.blocks, prompt.Text, s.block, seed)
		s.blocks = kvindex.AppendText(s.blocks, prompt.Text[from:], s.length-from, seed)
	case text:
		s.blocks = kvindex.AppendText(s.blocks, prompt.Text, s.block, seed)
	default:
		s.blocks = kvindex.AppendTokens(s.blocks, prompt.Tokens, s.block, seed)
		if tail {
			s.blocks = kvindex.AppendTokens(s.blocks, prompt.Tokens[from:], s.length-from, seed)
		}
	}
	if len(s.blocks) > full && full > 0 {
		s.blocks[full] = chain(s.blocks[full-1], s.blocks[full])
	}
}

// chain makes the hash of what follows the last full block depend on all before,
// as the full blocks' hashes do.
func chain(parent, local uint64) uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], parent)
	binary.LittleEndian.PutUint64(b[8:], local)
	return xxh3.HashSeed(b[:], agreedSeed)
}

// covered returns how much of the prompt so many blocks are, in the prompt's unit.
func (s *prepared) covered(depth int) int { return min(depth*s.block, s.length) }

// matchedTokens returns how many tokens so many blocks are.
func (s *prepared) matchedTokens(depth int) int {
	switch covered := s.covered(depth); {
	case depth == 0:
		return 0
	case covered == s.length:
		return s.tokens
	default:
		return min(covered/s.unit, s.tokens)
	}
}

// find searches the index and puts the fleet in order.
func (p *Policy) find(s *prepared, q *routing.Request, f *fleet) {
	found := s.found
	if found == nil {
		found = p.scratch.Get().(*scratch)
	}
	s.fleet, s.found, s.holders = f, nil, nil
	p.index.Match(s.blocks, &found.matches)
	if p.ray {
		s.holders = inFleetOrder(&found.matches, f)
		p.scratch.Put(found)
		return
	}
	found.setKey(s.key)
	found.scores = slices.Grow(found.scores[:0], len(f.replicas))
	for _, r := range f.replicas {
		found.scores = append(found.scores, found.score(r.ID))
	}
	s.top, s.ntop = first(f.replicas, found.scores)
	for i := range s.ntop {
		s.top[i].depth = int32(found.matches.Depth(f.members[s.top[i].at].slot))
	}
	s.match(found, p.shared(s, q, f, &found.matches), p.config.MatchRateThreshold)
	if len(f.replicas) > head {
		s.found = found
		return
	}
	p.scratch.Put(found)
}

// shared returns how many leading blocks decide nothing. The last never does.
func (p *Policy) shared(s *prepared, q *routing.Request, f *fleet, m *kvindex.Matches) int {
	if len(f.replicas) == 1 || len(s.blocks) == 0 {
		return 0
	}
	held := m.Shared(f.quorum(q.Model, p.config.SharedFraction))
	return min(max(s.common, held), len(s.blocks)-1)
}

// match keeps the holders whose match, less what is shared, reaches the rate.
func (s *prepared) match(found *scratch, shared int, rate float64) {
	own := float64(s.length - s.covered(shared))
	var best [maxHolders]place
	n := 0
	earlier := func(h, than place) bool {
		if h.depth != than.depth {
			return h.depth > than.depth
		}
		r := s.fleet.replicas
		return before(found.scores[h.at], r[h.at], found.scores[than.at], r[than.at])
	}
	for _, holder := range found.matches.Holders {
		if holder.Depth <= shared || float64(s.covered(holder.Depth)-s.covered(shared)) < rate*own {
			break // the deepest come first
		}
		h, ok := s.fleet.place(holder)
		switch {
		case !ok || n == maxHolders && !earlier(h, best[n-1]):
			continue
		case n < maxHolders:
			n++
		}
		at := n - 1
		for ; at > 0 && earlier(h, best[at-1]); at-- {
			best[at] = best[at-1]
		}
		best[at] = h
	}
	s.holders = append(s.fewHolders[:0], best[:n]...)
}

// inFleetOrder returns all holders, the deepest first, equals in the fleet's order.
func inFleetOrder(m *kvindex.Matches, f *fleet) []place {
	holders := make([]place, 0, len(m.Holders))
	for _, holder := range m.Holders {
		if h, ok := f.place(holder); ok {
			holders = append(holders, h)
		}
	}
	slices.SortFunc(holders, func(a, b place) int {
		return cmp.Or(cmp.Compare(b.depth, a.depth), cmp.Compare(a.at, b.at))
	})
	return holders
}
