package baseline

import (
	"slices"
	"sort"
)

// active is what this router has under way on one replica.
type active struct {
	prompts []*found
	blocks  int // different ones in these prompts, and the tail of each
}

// add counts a prompt: of its blocks those that no other has.
func (a *active) add(s *found) {
	a.blocks += len(s.blocks) - a.shared(s.blocks) + s.tail
	a.prompts = append(a.prompts, s)
}

// remove takes back an add.
func (a *active) remove(s *found) {
	i, last := slices.Index(a.prompts, s), len(a.prompts)-1
	a.prompts[i], a.prompts[last] = a.prompts[last], nil
	a.prompts = a.prompts[:last]
	a.blocks -= len(s.blocks) - a.shared(s.blocks) + s.tail
}

// shared is how many leading blocks are under way. Hashes are chained: prompts that have one block in common have all
// before it, too.
func (a *active) shared(blocks []uint64) int {
	most := 0
	for _, s := range a.prompts {
		if n := min(len(blocks), len(s.blocks)); n > most && blocks[most] == s.blocks[most] {
			most += sort.Search(n-most, func(i int) bool { return blocks[most+i] != s.blocks[most+i] })
		}
	}
	return most
}
