package kvindex

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/race"
)

// Two days of prompts that are never seen again, one a second, while every hour a replica is replaced and
// an engine's restart clears another: the budget is turned over seventy times, and the heap is as
// large at the end as when the budget was first full.
func TestTwoDaysFlat(t *testing.T) {
	hours := 48
	if race.Enabled {
		hours = 10 // one goroutine, seven million blocks
	}
	const (
		budget  = 2 << 20
		perHour = 3600
		blocks  = 40 // 640 tokens
		full    = 4  // hours after which the budget was surely turned over
		within  = 128 << 10
	)
	before := heap()
	x := New(budget)
	slots := replicas(x, 16)
	var low, high int64
	for hour := range hours {
		for _, at := range []int{hour % len(slots), (hour + 5) % len(slots)} {
			x.Drop(slots[at])
			slots[at] = x.Add(nil)
		}
		for second := range perHour {
			x.Insert(slots[second%len(slots)], random(uint64(hour*perHour+second), blocks))
			require.LessOrEqual(t, x.Stats().Bytes, int64(budget))
		}
		switch size := heap() - before; {
		case hour < full:
		case hour == full:
			low, high = size, size
		default:
			low, high = min(low, size), max(high, size)
		}
	}
	t.Logf("between %d and %d bytes of heap, %d evictions", low, high, x.Stats().Evictions)
	assert.LessOrEqual(t, high-low, int64(within))
	assert.LessOrEqual(t, high, int64(budget+within))
	assert.Greater(t, x.Stats().Evictions, uint64(hours*x.Holders()))
	runtime.KeepAlive(x)
}

// heap is what lives on the heap, after the garbage is gone.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
