package rendezvous

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestReuse(t *testing.T) {
	var u Reuse
	assert.Zero(t, u.Share(), "nothing is expected before something was measured")
	u.Learn(10, 0)
	u.Learn(10, -5)
	assert.Zero(t, u.Share(), "a prompt without blocks of its own changes nothing")
	u.Learn(100, 100)
	assert.InDelta(t, 1./(reusePrior+1), u.Share(), 1e-9, "the first weigh more")
	for range 1000 {
		u.Learn(6_000, 8_000)
	}
	assert.InDelta(t, 0.75, u.Share(), 1e-3)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 1000 {
				u.Learn(90_000, 10_000)
			}
		})
	}
	all.Wait()
	assert.InDelta(t, 1, u.Share(), 1e-3, "never more than all")
}

// The speed of learning does not depend on the usual length of prompts, and short ones among long ones count for
// less.
func TestReuseIsLearnedAtAnyLength(t *testing.T) {
	var short, long, mixed Reuse
	short.Learn(400, 400)
	long.Learn(40_000, 40_000)
	for range 100 {
		short.Learn(0, 400)
		long.Learn(0, 40_000)
	}
	assert.InDelta(t, long.Share(), short.Share(), 1e-9)
	assert.Less(t, short.Share(), 0.005)
	for range 500 {
		mixed.Learn(9_000, 9_000)
		mixed.Learn(0, 1_000)
	}
	assert.InDelta(t, 0.9, mixed.Share(), 0.05)
}

// A client is alone while no engine has anything cached that it did not send there, and not before it has seen some
// prompts that could have shown another client.
func TestAlone(t *testing.T) {
	var u Reuse
	quiet := func(n int) {
		for range n {
			u.Saw(100, 80, 1000)
		}
	}
	assert.False(t, u.Alone())
	quiet(aloneAfter - 1)
	assert.False(t, u.Alone())
	for range 100 {
		u.Saw(1000, 1000, 1000) // all of it was known: it could not have shown one
	}
	assert.False(t, u.Alone())
	quiet(1)
	assert.True(t, u.Alone())
	u.Saw(100, 101, 1000)
	assert.False(t, u.Alone())
	quiet(seen + aloneAfter - 1)
	assert.False(t, u.Alone())
	quiet(1)
	assert.True(t, u.Alone())
}
