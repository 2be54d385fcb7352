package kvindex_test

import (
	"fmt"

	"github.com/warmpath/warmpath/internal/kvindex"
)

func Example() {
	index := kvindex.New(0)
	warm, cold := index.Add(nil), index.Add(nil)

	seed := kvindex.SeedFor("llama", "", "")
	system, question := "You are a helpful assistant.....", "How warm is a path in the sun...?"
	index.Insert(warm, kvindex.AppendText(nil, system+question, 16, seed))
	index.Insert(cold, kvindex.AppendText(nil, system, 16, seed))

	var m kvindex.Matches
	index.Match(kvindex.AppendText(nil, system+"How cold is it?", 16, seed), &m)
	fmt.Println(m.Depth(warm), m.Depth(cold), m.Holders[1].Depth)
	index.Match(kvindex.AppendText(nil, system+question, 16, seed), &m)
	fmt.Println(m.Holders[0].Slot == warm, m.Holders[0].Depth, m.Holders[1].Depth)
	// Output:
	// 2 2 2
	// true 4 2
}
