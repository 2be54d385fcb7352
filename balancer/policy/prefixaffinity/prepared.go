package prefixaffinity

import (
	"cmp"
	"slices"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/cacheview"
	"github.com/warmpath/warmpath/internal/rendezvous"
)

const (
	// maxHolders bounds the holders kept with a request. Those behind them are
	// found by the rendezvous order, in which a prefix fans out anyway.
	maxHolders = 32
	// short is how many holders need no memory of their own.
	short = 8
)

// prepared is what Prepare leaves with a request. What is read from the prompt
// stays for all attempts; what is found for it is found again for another fleet.
type prepared struct {
	// Read from the prompt, once.
	rendezvous.Blocks
	key     uint64 // of the rendezvous order
	common  int    // leading blocks that are in more requests than one replica should bear
	second  bool   // the second in the order is this prompt's home, and the first is behind it
	session bool   // the key is the session's

	rendezvous.Counted
	predicted cacheview.Prediction // of the attempt under way
	bytes     int64                // that it added to Member.SentBytes

	// Found for a fleet.
	fleet   *cacheview.Fleet
	shared  int                               // leading blocks that decide nothing
	top     [rendezvous.Head]rendezvous.Place // the beginning of the rendezvous order
	ntop    int
	holders []rendezvous.Place // that match, the deepest first, else in the rendezvous order
	// found holds the scores and depths of every replica, from Prepare to Routed
	// and where top is not the whole fleet only. A later attempt that needs more
	// than top and holders computes the scores again, and has no depths.
	found *scratch

	fewHolders [short]rendezvous.Place
}

// scratch is the memory of one search, used again and again.
type scratch struct {
	rendezvous.Scorer
	cacheview.Found
	scores []uint64 // by place in the fleet
}

// read hashes the prompt and finds the key. It returns nil where there is none.
func (p *affinity) read(q *policy.Request, v policy.View) *prepared {
	if q.Prompt.Empty() && (q.Session == "" || p.ray) {
		return nil
	}
	s := &prepared{Blocks: rendezvous.Blocks{Tokens: q.PromptTokens}}
	if !q.Prompt.Empty() {
		s.Cut(q.Prompt, q.PromptTokens, p.caches.Grain(q.Model), p.caches.Seed(q), !p.ray)
		if p.ray {
			return s
		}
		var key int
		key, s.common = s.Find(p.popularity, s.Hashes, len(v.Replicas()))
		s.key = s.Hashes[key]
		s.second = s.common > key && s.Hashes[s.common]&1 == 1
	}
	if q.Session != "" && (p.config.StickySessions || q.Prompt.Empty()) {
		s.key, s.session, s.second = rendezvous.SessionKey(q.Session), true, false
	}
	return s
}

// find searches the index and puts the fleet in order.
func (p *affinity) find(s *prepared, f *cacheview.Fleet) {
	found := s.found
	if found == nil {
		found = p.scratch.Get().(*scratch)
	}
	s.fleet, s.found, s.holders = f, nil, nil
	p.caches.Match(f, &s.Blocks, &found.Found)
	if p.ray {
		s.holders = inFleetOrder(found.Holders)
		p.scratch.Put(found)
		return
	}
	found.SetKey(s.key)
	found.scores = slices.Grow(found.scores[:0], len(f.Replicas))
	for _, r := range f.Replicas {
		found.scores = append(found.scores, found.Score(r.ID))
	}
	s.top, s.ntop = rendezvous.First(f.Replicas, found.scores)
	if s.second && s.ntop > 1 {
		a, b := s.top[0].At, s.top[1].At
		s.top[0], s.top[1] = s.top[1], s.top[0]
		found.scores[a], found.scores[b] = found.scores[b], found.scores[a]
	}
	for i := range s.ntop {
		s.top[i].Depth = int32(found.Any(int(s.top[i].At)))
	}
	s.shared = s.sharedBlocks()
	s.match(found, p.rate)
	if len(f.Replicas) > rendezvous.Head {
		s.found = found
		return
	}
	p.scratch.Put(found)
}

// sharedBlocks returns how many leading blocks decide nothing. The last never does.
func (s *prepared) sharedBlocks() int {
	if len(s.fleet.Replicas) == 1 || len(s.Hashes) == 0 {
		return 0
	}
	return min(s.common, len(s.Hashes)-1)
}

// match keeps the holders whose match, less what is shared, reaches the rate.
func (s *prepared) match(found *scratch, rate float64) {
	shared := s.shared
	own := float64(s.Length - s.Covered(shared))
	var best [maxHolders]rendezvous.Place
	n := 0
	earlier := func(h, than rendezvous.Place) bool {
		if h.Depth != than.Depth {
			return h.Depth > than.Depth
		}
		r := s.fleet.Replicas
		return rendezvous.Before(found.scores[h.At], r[h.At], found.scores[than.At], r[than.At])
	}
	for _, h := range found.Holders {
		if depth := int(h.Depth); depth <= shared || float64(s.Covered(depth)-s.Covered(shared)) < rate*own {
			break // the deepest come first
		}
		switch {
		case n == maxHolders && !earlier(h, best[n-1]):
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
func inFleetOrder(found []rendezvous.Place) []rendezvous.Place {
	holders := slices.Clone(found)
	slices.SortFunc(holders, func(a, b rendezvous.Place) int {
		return cmp.Or(cmp.Compare(b.Depth, a.Depth), cmp.Compare(a.At, b.At))
	})
	return holders
}
