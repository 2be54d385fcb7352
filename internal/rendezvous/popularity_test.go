package rendezvous

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/warmpath/warmpath/internal/race"
)

// chained returns n block hashes that share the first of the family's.
func chained(family, shared, own, n int) []uint64 {
	out := make([]uint64, n)
	a, b := rand.New(rand.NewPCG(1, uint64(family))), rand.New(rand.NewPCG(2, uint64(own)))
	for i := range out {
		if x, y := a.Uint64(), b.Uint64(); i < shared {
			out[i] = x
		} else {
			out[i] = y
		}
	}
	return out
}

// The distinguishing block of prompts that share n blocks is the next one, whatever their number.
func TestKeyIsPastWhatIsShared(t *testing.T) {
	for _, replicas := range race.Of([]int{2, 4, 16, 100, 1000}, []int{16}) {
		for _, shared := range []int{0, 1, 2, 3, 5, 31, 32, 33, 63, 64, 100, 125, 127, 128, 129, 500, 1023} {
			p := NewPopularity()
			right := 0
			for i := range 1500 {
				first := see(p, chained(1, shared, i, shared+1+i%300), replicas)
				if i < 1000 {
					continue
				}
				if first == shared {
					right++
				}
			}
			assert.GreaterOrEqual(t, right, 495, "%d replicas, %d shared", replicas, shared)
		}
	}
}

// A learned prefix stays learned when the generation of counts changes: no request sees a block inside it as
// unpopular again.
func TestHotPrefixStaysLearnedAcrossGenerations(t *testing.T) {
	for _, shared := range []int{3, 40, 160, 375} {
		p := NewPopularity()
		for i := range 5 * window {
			first := see(p, chained(1, shared, i, shared+32), 16)
			if i >= 200 && first < shared {
				t.Fatalf("request %d: block %d of the %d shared ones is the key", i, first, shared)
			}
		}
	}
}

// The number of requests that it takes to learn a system prompt of 125 blocks.
func TestNewSystemPromptIsLearnedSoon(t *testing.T) {
	p := NewPopularity()
	at := func(family, from int) int {
		for i := range 4 * window {
			if first := see(p, chained(family, 125, from+i, 300), 16); first >= 125 {
				return i
			}
		}
		return -1
	}
	assert.LessOrEqual(t, at(1, 0), 20, "a new client")
	for i := range 2 * window {
		see(p, chained(1, 125, 100+i, 300), 16)
	}
	assert.LessOrEqual(t, at(2, 100_000), window, "a new prompt at an old client")
}

// Each half of the requests has a system prompt of its own.
func TestTwoSystemPrompts(t *testing.T) {
	p := NewPopularity()
	for i := range 2000 {
		if first := see(p, chained(i%2, 40, i, 60), 16); i > 200 {
			assert.Equal(t, 40, first)
		}
	}
}

func TestPopularityForgets(t *testing.T) {
	p := NewPopularity()
	old := chained(1, 40, 0, 40)
	for range 200 {
		see(p, old, 16)
	}
	assert.Equal(t, 39, key(p, old), "all popular: the last")
	for i := range 2 * window {
		see(p, chained(2, 0, i, 2), 16)
	}
	assert.Zero(t, key(p, old))
}

func TestPromptsOfOneBlock(t *testing.T) {
	p := NewPopularity()
	for range 100 {
		assert.Zero(t, key(p, []uint64{7}))
	}
}

func TestPopularityIsBoundedAndRaceFree(t *testing.T) {
	p := NewPopularity()
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 3 * window / 4 {
				see(p, chained(1, 10, w<<20+i, 20), 16)
			}
		})
	}
	wg.Wait()
	assert.LessOrEqual(t, p.now.requests+p.before.requests, 2*window)
}

func BenchmarkPopularity(b *testing.B) {
	p := NewPopularity()
	var prompts [64][]uint64
	for i := range prompts {
		prompts[i] = chained(1, 125, i, 512)
	}
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		see(p, prompts[i%64], 16)
		i++
	}
}

// see counts a prompt that is sent, and returns the result of Find before that.
func see(p *Popularity, blocks []uint64, replicas int) (key int) {
	s := &Prompt{Blocks: Blocks{Hashes: blocks}}
	p.Find(s, replicas)
	p.Sent(s)
	return s.First
}

func key(p *Popularity, blocks []uint64) int {
	return see(p, blocks, 16)
}

// A prompt counts once, however many attempts are made, and not at all if none is sent.
func TestPromptCountsOnce(t *testing.T) {
	p := NewPopularity()
	s := &Prompt{Blocks: Blocks{Hashes: chained(1, 0, 1, 20)}}
	p.Find(s, 16)
	p.Sent(s)
	p.Ended(s, false)
	assert.Equal(t, generation{number: 1}, *p.now)
	assert.Empty(t, p.firsts)
	for _, sent := range []bool{true, false, true} {
		p.Sent(s)
		p.Ended(s, sent)
		assert.Equal(t, 1, p.now.requests)
	}
}

// Neither attempts that are not sent nor one long prompt end the first phase of a client, in which the second
// conversation shows what conversations share.
func TestNewClientStaysThorough(t *testing.T) {
	for name, before := range map[string]func(p *Popularity){
		"not sent": func(p *Popularity) {
			for i := range 40 {
				s := &Prompt{Blocks: Blocks{Hashes: chained(1000+i, 0, 1000+i, 512)}}
				p.Find(s, 16)
				p.Sent(s)
				p.Ended(s, false)
			}
		},
		"long": func(p *Popularity) { see(p, chained(1000, 0, 1000, thorough+1), 16) },
	} {
		p := NewPopularity()
		before(p)
		see(p, chained(1, 40, 1, 60), 16)
		for i := 2; i <= 3; i++ {
			first := see(p, chained(1, 40, i, 60), 16)
			assert.Equal(t, 40, first, "%s: conversation %d", name, i)
		}
	}
}
