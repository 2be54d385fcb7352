package kvaware

import (
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/cacheview"
	"github.com/warmpath/warmpath/internal/rendezvous"
)

const (
	// many is how many units are all looked at. Of a larger fleet it is the holders,
	// the first in the rendezvous order, and so many others drawn at random.
	many = 64
	// maxHolders bounds the holders of a larger fleet that are looked at.
	maxHolders = 32
	// head is how many of the first in the rendezvous order of a larger fleet are looked at.
	head = 16
	// short is how many candidates need no memory of their own.
	short = 16
)

// prepared is what Prepare leaves with a request. What is read from the prompt stays
// for all attempts; what is found for it is found again for another fleet.
type prepared struct {
	rendezvous.Prompt
	predicted cacheview.Prediction // of the attempt under way
	picked
	unfound bool // nothing of it was cached anywhere at the last pick
	shows   bool // the last pick sent it to its home: what is cached there shows what other clients have sent

	// Found for a fleet.
	fleet      *cacheview.Fleet
	since      uint64 // picks in the index when it was searched
	candidates []candidate
	order      [2]int32 // places of the first two in the rendezvous order; -1 = there are fewer
	few        [short]candidate
}

// A candidate is a unit of the fleet: a replica, or one of its ranks.
type candidate struct {
	score  uint64  // in the rendezvous order
	credit float64 // tokens that need not be computed there
	tokens int32   // leading tokens cached there, on any tier
	at     int32   // place in the fleet
	rank   int32
	ranks  int32 // how many the replica has
}

// find searches the index and lists the candidates.
func (p *kvAware) find(s *prepared, f *cacheview.Fleet) {
	found := p.caches.Find(f, &s.Prompt)
	defer p.caches.Free(found)
	s.fleet, s.candidates, s.order = f, s.few[:0], [2]int32{-1, -1}
	var top [head]rendezvous.Place
	n := len(s.order)
	if f.Units() > many {
		n = head
	}
	first := rendezvous.First(top[:0:n], f.Replicas, found.Scores)
	for i, place := range first[:min(len(first), len(s.order))] {
		s.order[i] = place.At
	}
	if f.Units() <= many {
		if f.Units() > short {
			s.candidates = make([]candidate, 0, f.Units())
		}
		for at := range f.Replicas {
			s.add(found, at)
		}
		return
	}
	s.candidates = make([]candidate, 0, maxHolders+head)
	for _, place := range first {
		s.add(found, int(place.At))
	}
	for _, h := range found.Holders[:min(len(found.Holders), maxHolders)] {
		if at := f.PlaceOf(int(h.At)); !s.has(at) {
			s.add(found, at)
		}
	}
}

// add lists the units of the replica at a place. Its ranks come in the order of the
// key, for those that cost the same.
func (s *prepared) add(found *cacheview.Found, at int) {
	first, ranks := s.fleet.Unit(at, 0), s.fleet.Ranks(at)
	for i := range ranks {
		rank := int((s.Key + uint64(i)) % uint64(ranks))
		c := candidate{score: found.Scores[at], at: int32(at), rank: int32(rank), ranks: int32(ranks)}
		c.credit, c.tokens = credit(s, found, first+rank)
		s.candidates = append(s.candidates, c)
	}
}

func (s *prepared) has(at int) bool {
	for i := range s.candidates {
		if int(s.candidates[i].at) == at {
			return true
		}
	}
	return false
}

// credit returns what a unit's cache is worth for the prompt, and how many leading
// tokens it holds on any tier.
func credit(s *prepared, found *cacheview.Found, unit int) (saved float64, tokens int32) {
	before := 0
	for t, each := range credits {
		n := s.CoveredTokens(found.Depth(unit, policy.Tier(t)))
		saved += each * float64(n-before)
		before = n
	}
	return saved, int32(before)
}
