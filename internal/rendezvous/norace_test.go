//go:build !race

package rendezvous

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCountingDoesNotAllocate(t *testing.T) {
	p := NewPopularity()
	for i := range window + 1 { // then not every block is counted
		see(p, chained(1, 10, i, 20), 16)
	}
	blocks := chained(1, 10, 1, 512)
	var s Prompt
	assert.Zero(t, testing.AllocsPerRun(10, func() {
		s = Prompt{Blocks: Blocks{Hashes: blocks}}
		p.Find(&s, 16)
		p.Sent(&s)
		p.Ended(&s, true)
	}))
}
