package kvevents

import "sync"

// sizes is the block size of every model, learned from the first block stored. Replicas of one model must agree: with
// another size, equal prompts have other hashes. Safe for concurrent use.
type sizes struct {
	mu sync.Mutex // guards the map; nothing is called under it
	of map[string]sizeClaim
}

type sizeClaim struct{ tokens, ranks int }

// claim reports whether a rank may use this block size, and counts it as a user if so.
func (s *sizes) claim(model string, tokens int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = make(map[string]sizeClaim)
	}
	c := s.of[model]
	if c.ranks > 0 && c.tokens != tokens {
		return false
	}
	s.of[model] = sizeClaim{tokens, c.ranks + 1}
	return true
}

// release takes a claim back; 0 tokens were none. With its last user the size is free.
func (s *sizes) release(model string, tokens int) {
	if tokens == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.of[model]; c.ranks > 1 {
		s.of[model] = sizeClaim{c.tokens, c.ranks - 1}
	} else {
		delete(s.of, model)
	}
}

// size is the block size of a model, 0 if it is not known.
func (s *sizes) size(model string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[model].tokens
}
