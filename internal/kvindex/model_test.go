package kvindex

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// model is a naive index: a list per replica, the most recently used first, nothing shared. It has capacities and
// no byte budget.
type model struct {
	held     map[Slot][]uint64
	capacity map[Slot]int
}

func newModel() *model {
	return &model{held: make(map[Slot][]uint64), capacity: make(map[Slot]int)}
}

func (m *model) insert(s Slot, blocks []uint64) {
	c := m.capacity[s]
	if c > 0 {
		blocks = blocks[:min(c, len(blocks))]
	}
	rest := slices.DeleteFunc(slices.Clone(m.held[s]), func(h uint64) bool { return slices.Contains(blocks, h) })
	m.held[s] = append(slices.Clone(blocks), rest...)
	m.setCapacity(s, c)
}

func (m *model) setCapacity(s Slot, c int) {
	if m.capacity[s] = c; c > 0 {
		m.held[s] = m.held[s][:min(c, len(m.held[s]))]
	}
}

func (m *model) remove(s Slot, blocks []uint64) {
	m.held[s] = slices.DeleteFunc(m.held[s], func(h uint64) bool { return slices.Contains(blocks, h) })
}

func (m *model) depth(s Slot, blocks []uint64) int {
	for i, hash := range blocks {
		if !slices.Contains(m.held[s], hash) {
			return i
		}
	}
	return len(blocks)
}

func (m *model) holders() (n int) {
	for _, held := range m.held {
		n += len(held)
	}
	return n
}

// Without a byte budget at work, the index and the naive model agree to the block. Capacities are left out
// here: the slack of the LRU makes them differ.
func TestAgreesWithTheModel(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		x, m := New(0), newModel()
		slots := replicas(x, 1+r.IntN(150))
		for range 400 {
			s := slots[r.IntN(len(slots))]
			blocks := prompt(r.IntN(3), r.IntN(20), r.IntN(3), 1+r.IntN(40))
			switch r.IntN(10) {
			case 0:
				x.Drop(s)
				delete(m.held, s)
				slots[slices.Index(slots, s)] = x.Add(nil)
			case 1, 2:
				from := r.IntN(len(blocks))
				x.Remove(s, blocks[from:])
				m.remove(s, blocks[from:])
			case 3:
				from := r.IntN(len(blocks))
				require.Equal(t, m.depth(s, blocks[from:]), x.Insert(s, blocks[from:]))
				m.insert(s, blocks[from:])
			default:
				require.Equal(t, m.depth(s, blocks), x.Insert(s, blocks))
				m.insert(s, blocks)
			}
			var got Matches
			x.Match(blocks, &got)
			depths := []int{}
			for _, s := range slots {
				want := m.depth(s, blocks)
				require.Equal(t, want, got.Depth(s))
				depths = append(depths, want)
			}
			slices.SortFunc(depths, func(a, b int) int { return b - a })
			for k := 1; k <= len(depths); k++ {
				require.Equal(t, depths[k-1], shared(&got, k))
			}
		}
		require.Equal(t, m.holders(), x.Holders())
		verify(t, x)
	}
}

// With capacities, and chains that are never recent, the least recently used segments go: the last insert stays
// whole, and the index holds nothing that the model has not had since its removal.
func TestLRUWithoutRecentChains(t *testing.T) {
	const capacity = 60
	r := rand.New(rand.NewPCG(1, 2))
	x := New(1 << 30)
	s := x.Add(nil)
	x.SetCapacity(s, capacity)
	ever := newModel()
	for range 2000 {
		blocks := prompt(r.IntN(4), r.IntN(12), r.IntN(3), 1+r.IntN(30))
		age(x, s)
		x.Insert(s, blocks)
		ever.insert(s, blocks)
		require.Equal(t, len(blocks), depthOf(x, s, blocks))
		probe := prompt(r.IntN(4), r.IntN(12), r.IntN(3), 30)
		require.LessOrEqual(t, depthOf(x, s, probe), ever.depth(s, probe))
		require.LessOrEqual(t, x.Holders(), capacity)
		before := 0 // a prompt is held from its beginning, as far as one of the latest is
		for _, hash := range ever.held[s][:min(len(blocks), len(ever.held[s]))] {
			before += scanned(x, s, []uint64{hash})
		}
		require.Equal(t, len(blocks), before)
	}
	require.Greater(t, x.Holders(), capacity-segmentSize)
	verify(t, x)
}

func TestConcurrently(t *testing.T) {
	x := New(minBytes)
	var slots [70]atomic.Uint32
	for i, s := range replicas(x, len(slots)) {
		x.SetCapacity(s, 700)
		slots[i].Store(uint32(s))
	}
	var wg sync.WaitGroup
	for worker := range uint64(6) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(worker, 3))
			var m Matches
			for range 1500 {
				at := &slots[r.IntN(len(slots))]
				s := Slot(at.Load())
				blocks := prompt(r.IntN(4), r.IntN(90), r.IntN(9), 1+r.IntN(200))
				switch r.IntN(12) {
				case 0, 1, 2:
					if fresh := x.Add(nil); at.CompareAndSwap(uint32(s), uint32(fresh)) {
						x.Drop(s)
					} else {
						x.Drop(fresh)
					}
				case 3:
					x.Remove(s, blocks[len(blocks)/2:])
				case 4:
					x.SetCapacity(s, 100+r.IntN(900))
				case 5, 6, 7:
					x.Insert(s, blocks)
				default:
					x.Match(blocks, &m)
					for i, h := range m.Holders {
						if h.Depth < 1 || h.Depth > len(blocks) || i > 0 && h.Depth > m.Holders[i-1].Depth {
							t.Errorf("holder %d of %v", i, m.Holders)
						}
					}
				}
				if st := x.Stats(); st.Bytes > minBytes {
					t.Errorf("%d bytes", st.Bytes)
				}
			}
		})
	}
	wg.Wait()
	verify(t, x)
}
