package rendezvous

import (
	"slices"
	"sort"
)

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
type firsts struct {
	blocks []uint64 // of all prompts, one behind the other
	ends   []int    // where each ends
}

// common returns how many leading blocks a prompt has in common with at least so many
// others that went on differently.
func (f *firsts) common(blocks []uint64, others int) int {
	var few [fresh]int
	common, from := few[:0], 0
	for _, end := range f.ends {
		o := f.blocks[from:end]
		from = end
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

// add takes a prompt.
func (f *firsts) add(blocks []uint64) {
	f.blocks = append(f.blocks, blocks...)
	f.ends = append(f.ends, len(f.blocks))
}

// remove takes back an add.
func (f *firsts) remove(blocks []uint64) {
	for i := len(f.ends) - 1; i >= 0; i-- {
		from := 0
		if i > 0 {
			from = f.ends[i-1]
		}
		if !slices.Equal(f.blocks[from:f.ends[i]], blocks) {
			continue
		}
		f.blocks = slices.Delete(f.blocks, from, f.ends[i])
		f.ends = slices.Delete(f.ends, i, i+1)
		for j := i; j < len(f.ends); j++ {
			f.ends[j] -= len(blocks)
		}
		return
	}
}
