package kvindex

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzIndex runs a program of three bytes a step and compares the index with the model: never more than the model,
// the same while nothing was evicted, and always equal to a search block by block.
func FuzzIndex(f *testing.F) {
	f.Add([]byte{0, 1, 9, 1, 1, 9, 2, 1, 4, 3, 1, 0, 0, 1, 9, 4, 1, 0, 5, 1, 3}, false)
	f.Add([]byte{0, 1, 200, 0, 2, 200, 7, 1, 2, 8, 1, 199, 9, 2, 200, 0, 1, 200}, true)
	f.Add([]byte{0, 1, 200, 0, 2, 210, 0, 3, 220, 5, 1, 7, 0, 1, 250, 6, 9, 9}, true)
	f.Add([]byte("2C\xc82C\xd220\xdc20x10(000"), true)
	f.Fuzz(func(t *testing.T, program []byte, small bool) {
		x, m := New(minBytes), newModel()
		slots := replicas(x, 80)
		for _, s := range slots {
			if small {
				x.SetCapacity(s, 12)
			}
		}
		for ; len(program) >= 3; program = program[3:] {
			s := slots[program[1]%80]
			arg := int(program[2])
			blocks := prompt(arg&1, arg>>1&7, arg>>4&1, 1+arg>>3)
			switch program[0] % 10 {
			case 0, 1:
				x.Insert(s, blocks)
				m.insert(s, blocks)
			case 2:
				x.Remove(s, blocks[len(blocks)/2:])
				m.remove(s, blocks[len(blocks)/2:])
			case 3, 4:
				x.Drop(s)
				delete(m.held, s)
				fresh := x.Add(nil)
				slots[program[1]%80] = fresh
				if small {
					x.SetCapacity(fresh, 12)
				}
			case 5:
				if small {
					x.SetCapacity(s, 1+arg%24)
				}
			case 6:
				x.mu.Lock()
				x.evict(1+arg%16, none)
				x.mu.Unlock()
			case 7:
				x.SetLive(s, arg&1 == 0)
			case 8:
				for i := len(blocks) - 1 - arg&1; i >= 0; i -= 2 {
					x.Remove(s, blocks[i:i+1])
					m.remove(s, blocks[i:i+1])
				}
			default:
				x.Insert(s, blocks[len(blocks)/3:])
				m.insert(s, blocks[len(blocks)/3:])
			}
			var got Matches
			x.Match(blocks, &got)
			exact := x.Stats().Evictions == 0
			if !small { // else chains are longer than a capacity
				require.LessOrEqual(t, x.Stats().LiveEvictions, x.Stats().Evictions)
			}
			for _, s := range slots {
				want := m.depth(s, blocks)
				require.LessOrEqual(t, got.Depth(s), want)
				require.Equal(t, scanned(x, s, blocks), got.Depth(s))
				if exact && !small {
					require.Equal(t, want, got.Depth(s))
				}
			}
		}
		verify(t, x)
	})
}
