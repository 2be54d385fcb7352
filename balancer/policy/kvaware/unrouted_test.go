package kvaware

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A pick counts as in the index only once all picks before it are, in whatever order they enter; one that never
// enters is dropped in the end.
func TestUnrouted(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	var u recent
	open := make(map[uint64]bool)
	for range 20_000 {
		n := u.pick()
		open[n] = true
		for len(open) > 0 && rnd.IntN(8) < min(len(open), 7) {
			for k := range open { // any of them
				u.routed(k)
				delete(open, k)
				break
			}
		}
		for k := range open {
			require.Greater(t, k, u.before.Load())
		}
	}
	for k := range open {
		u.routed(k)
	}
	last := u.pick()
	assert.Equal(t, last-1, u.before.Load())

	for range maxUnrouted - 1 {
		u.routed(u.pick())
	}
	assert.Equal(t, last-1, u.before.Load(), "last is waited for")
	u.routed(u.pick())
	assert.Equal(t, last+maxUnrouted-1, u.before.Load())
	u.routed(0)
}
