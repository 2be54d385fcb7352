package prefixaffinity

import "github.com/warmpath/warmpath/balancer/routing"

var _ routing.PromptHasher = (*Policy)(nil)

// PromptHashes implements [routing.PromptHasher].
func (p *Policy) PromptHashes(q *routing.Request) *routing.Hashed {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		return nil
	}
	return s.Hashed()
}
