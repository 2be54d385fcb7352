//go:build !race

package rendezvous

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Under the race detector a sync.Pool drops what it is given at random.
func TestCountingDoesNotAllocate(t *testing.T) {
	p := NewPopularity()
	for i := range window + 1 { // then not every block is counted
		see(p, chained(1, 10, i, 20), 16)
	}
	blocks := chained(1, 10, 1, 512)
	var c Counted
	assert.Zero(t, testing.AllocsPerRun(10, func() {
		c = Counted{}
		c.Find(p, blocks, 16)
		c.Sent(p)
		c.Ended(p, true)
	}))
}
