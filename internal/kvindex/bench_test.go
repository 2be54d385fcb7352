package kvindex

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/warmpath/warmpath/internal/race"
)

func BenchmarkAppendTokens(b *testing.B) {
	for _, n := range []int{1024, 8192, 32768} {
		b.Run(fmt.Sprint("tokens=", n), func(b *testing.B) {
			tokens, dst := make([]uint32, n), make([]uint64, 0, n/16)
			b.ReportAllocs()
			b.SetBytes(int64(4 * n))
			for b.Loop() {
				dst = AppendTokens(dst[:0], tokens, 16, chainSeed)
			}
		})
	}
}

func BenchmarkAppendText(b *testing.B) {
	text, dst := string(make([]byte, 32768)), make([]uint64, 0, 512)
	b.ReportAllocs()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		dst = AppendText(dst[:0], text, 64, chainSeed)
	}
}

// BenchmarkMatch finds a prompt of 8,192 tokens among 100,000 other blocks.
func BenchmarkMatch(b *testing.B) {
	for _, fleet := range []int{1, 8, 1000} {
		b.Run(fmt.Sprint("holders=", fleet), func(b *testing.B) {
			x := New(256 << 20)
			slots, blocks := replicas(x, fleet), prompt(1, 0, 0, 512)
			fill(x, slots, 100_000)
			for _, s := range slots {
				x.Insert(s, blocks)
			}
			var m Matches
			b.ReportAllocs()
			for b.Loop() {
				x.Match(blocks, &m)
			}
			if shared(&m, fleet) != 512 {
				b.Fatal(shared(&m, fleet))
			}
		})
	}
	b.Run("miss", func(b *testing.B) {
		x := New(0)
		fill(x, replicas(x, 8), 100_000)
		blocks := prompt(1, 0, 0, 512)
		var m Matches
		b.ReportAllocs()
		for b.Loop() {
			x.Match(blocks, &m)
		}
	})
}

// BenchmarkMatchParallel matches on every core while one goroutine inserts.
func BenchmarkMatchParallel(b *testing.B) {
	x := New(0)
	slots, blocks := replicas(x, 8), prompt(1, 0, 0, 512)
	for _, s := range slots {
		x.Insert(s, blocks)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		var m Matches
		for n := 0; pb.Next(); n++ {
			x.Match(blocks, &m)
			if n%16 == 0 {
				x.Insert(slots[n/16%8], blocks)
			}
		}
	})
}

// BenchmarkInsert inserts a prompt of 8,192 tokens: one that is recent, one that is old, a new one while the index
// grows, and a new one where every block evicts another.
func BenchmarkInsert(b *testing.B) {
	b.Run("young", func(b *testing.B) {
		x := New(0)
		s, blocks := x.Add(nil), prompt(1, 0, 0, 512)
		x.Insert(s, blocks)
		b.ReportAllocs()
		for b.Loop() {
			x.Insert(s, blocks)
		}
	})
	b.Run("old", func(b *testing.B) {
		x := New(0)
		s, blocks := x.Add(nil), prompt(1, 0, 0, 512)
		fill(x, []Slot{s}, 30_000)
		b.ReportAllocs()
		for b.Loop() {
			age(x, s)
			x.Insert(s, blocks)
		}
	})
	for name, budget := range map[string]int64{
		"new":                 maxBytes / 4,
		"new/budget-full":     8 << 20,
		"new/capacity-full":   maxBytes / 8,
		"new/64MiB-at-budget": 0,
	} {
		b.Run(name, func(b *testing.B) {
			x := New(budget)
			s := x.Add(nil)
			if name == "new/capacity-full" {
				x.SetCapacity(s, 30_000)
			}
			fill(x, []Slot{s}, 30_000)
			if budget == 0 {
				fill(x, []Slot{s}, 1_500_000)
			}
			r := rand.New(rand.NewPCG(1, 1))
			blocks := make([]uint64, 512)
			b.ReportAllocs()
			for b.Loop() {
				for i := range blocks {
					blocks[i] = r.Uint64()
				}
				x.Insert(s, blocks)
			}
		})
	}
}

func BenchmarkDrop(b *testing.B) {
	x := New(0)
	blocks := prompt(1, 0, 0, 512)
	b.ReportAllocs()
	for b.Loop() {
		s := x.Add(nil)
		x.Insert(s, blocks)
		x.Drop(s)
	}
}

// BenchmarkMemory reports what a million blocks cost: with one holder, and for each further holder.
func BenchmarkMemory(b *testing.B) {
	for _, c := range []struct{ fleet, holders int }{{8, 8}, {1000, 8}} {
		b.Run(fmt.Sprintf("replicas=%d", c.fleet), func(b *testing.B) {
			var f footprint
			for b.Loop() {
				f = weigh(c.fleet, c.holders, 1_000_000)
			}
			b.ReportMetric(f.block, "B/block")
			b.ReportMetric(f.further, "B/further-holder")
			b.ReportMetric(f.lru, "B/lru")
			b.ReportMetric(f.total, "B/(block,holder)")
		})
	}
}

// TestFootprint bounds the bytes per block at any number of blocks, whatever the growth of the shards.
func TestFootprint(t *testing.T) {
	if race.Enabled {
		t.Skip("one goroutine, a million blocks")
	}
	sizes := []int{200_000, 250_000, 290_000}
	if !testing.Short() {
		sizes = append(sizes, 1_000_000)
	}
	for _, n := range sizes {
		for _, fleet := range []int{8, 1000} {
			f := weigh(fleet, 8, n)
			t.Logf("%d blocks, %d replicas: %.1f bytes a block with one holder, %.1f each further holder, %.1f LRU", n, fleet, f.block, f.further, f.lru)
			assert.LessOrEqual(t, f.block, 64.)
			assert.LessOrEqual(t, f.further, 8.)
			assert.LessOrEqual(t, f.lru, 32.)
		}
	}
}

// footprint is bytes per block with one holder, per further holder of a block, and for the LRU per (block,
// holder), the most that was seen while the holders were added.
type footprint struct{ block, further, lru, total float64 }

func weigh(fleet, holders, blocks int) (f footprint) {
	x := New(1 << 30)
	slots := replicas(x, fleet)
	chain := make([]uint64, 500)
	for round := range holders {
		r := rand.New(rand.NewPCG(7, 7))
		for n := range blocks / len(chain) {
			for i := range chain {
				chain[i] = r.Uint64()
			}
			x.Insert(slots[(n*131+round*(fleet/holders))%fleet], chain)
		}
		if x.Holders() != blocks*(round+1) {
			panic("not every block has its holder")
		}
		sets := float64(x.blocks.bytes+x.blocks.segments.bytes) / float64(blocks)
		if round == 0 {
			f.block = sets
		} else {
			f.further = max(f.further, (sets-f.block)/float64(round))
		}
		f.lru = max(f.lru, float64(x.lru.nodes.bytes+x.cells.bytes)/float64(x.Holders()))
	}
	f.total = float64(x.bytes()) / float64(x.Holders())
	return f
}

// fill inserts chains of 500 random blocks, blocks in all.
func fill(x *Index, slots []Slot, blocks int) {
	r := rand.New(rand.NewPCG(9, 9))
	chain := make([]uint64, 500)
	for n := range blocks / len(chain) {
		for i := range chain {
			chain[i] = r.Uint64()
		}
		x.Insert(slots[n%len(slots)], chain)
	}
}
