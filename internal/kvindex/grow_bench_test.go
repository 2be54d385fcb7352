package kvindex

import (
	"math/rand/v2"
	"testing"
)

// BenchmarkGrowing inserts chats, as many at a time as in the name: each turn the whole chain so far and 32
// blocks more.
func BenchmarkGrowing(b *testing.B) {
	for _, c := range []struct {
		name   string
		chats  int
		budget int64
	}{
		{"chats=100", 100, 256 << 20},
		{"chats=2000", 2000, 256 << 20},
		{"chats=2000/budget-full", 2000, 0},
	} {
		b.Run(c.name, func(b *testing.B) { grow(b, New(c.budget), c.chats) })
	}
}

func grow(b *testing.B, x *Index, chats int) {
	const turn, turns = 32, 24
	slots := replicas(x, 16)
	r := rand.New(rand.NewPCG(3, 3))
	chains := make([][]uint64, chats)
	for i := range chains {
		for range r.IntN(turns) * turn {
			chains[i] = append(chains[i], r.Uint64())
		}
		x.Insert(slots[i%len(slots)], chains[i])
	}
	blocks := 0
	b.ReportAllocs()
	for b.Loop() {
		i := r.IntN(chats)
		if len(chains[i]) >= turn*turns {
			chains[i] = chains[i][:0]
		}
		for range turn {
			chains[i] = append(chains[i], r.Uint64())
		}
		x.Insert(slots[i%len(slots)], chains[i])
		blocks += len(chains[i])
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(blocks), "ns/block")
}
