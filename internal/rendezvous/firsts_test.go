package rendezvous

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestSecondConversationShowsWhatIsCommon(t *testing.T) {
	p := NewPopularity()
	assert.Zero(t, key(p, chained(1, 125, 1, 300)))
	assert.Equal(t, 125, key(p, chained(1, 125, 2, 400)), "another conversation")
	assert.Zero(t, key(p, chained(2, 125, 3, 300)), "another system prompt")
	assert.Equal(t, 125, key(p, chained(1, 125, 1, 500)), "a turn of the first")
	assert.Equal(t, 125, key(p, chained(2, 125, 4, 200)))
}

// Turns of one conversation are not new conversations: each has the previous one as its beginning, apart from the
// part after the last full block.
func TestTurnsAreNotTakenForConversations(t *testing.T) {
	whole := chained(1, 0, 1, 100)
	turn := func(n int) []uint64 { return append(whole[:n:n], uint64(n)) }
	p := NewPopularity()
	for _, n := range []int{10, 25, 60} {
		assert.Zero(t, key(p, turn(n)), n)
	}
	p = NewPopularity()
	for range Few {
		assert.Zero(t, key(p, turn(40)), "the same again")
	}
}

// The more requests a client has seen, the less a few of them count. minCount requests and more always count.
func TestConversationsAreWeighedAgainstTheRequests(t *testing.T) {
	for _, tt := range []struct{ before, enough int }{{0, 2}, {5, 2}, {8, 3}, {21, 3}, {24, Few + 1}, {40, Few + 1}} {
		p := NewPopularity()
		for i := range tt.before {
			key(p, chained(i, 0, i, 20))
		}
		for i := 1; i < tt.enough; i++ {
			assert.Zero(t, key(p, chained(99, 10, 100+i, 20)), "%d of %d", i, tt.before+i)
		}
		assert.Equal(t, 10, key(p, chained(99, 10, 200, 20)), "%d of %d", tt.enough, tt.before+tt.enough)
	}
}

func TestFirstPromptsAreForgotten(t *testing.T) {
	for _, length := range []int{1, 100, 3000} {
		p := NewPopularity()
		own := func(i int) []uint64 { return chained(i, 0, i, length) }
		for i := range 5 {
			see(p, own(i), 1000)
		}
		assert.Len(t, p.firsts, 5)
		for i := range fresh {
			see(p, own(5+i), 1000)
		}
		assert.Zero(t, p.firsts, "prompts of %d blocks", length)
	}
}
