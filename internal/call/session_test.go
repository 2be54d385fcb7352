package call

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A session that outlives its channels keeps no state of them.
func TestSessionForgetsChannels(t *testing.T) {
	s, open := NewSession("s"), NewHandle(nil, nil)
	for range 100 {
		s.uses(NewHandle(nil, nil))
	}
	require.Eventually(t, func() bool {
		runtime.GC()
		s.uses(open)
		s.uses(NewHandle(nil, nil))
		return len(s.used) <= 2
	}, time.Minute, time.Millisecond)
	runtime.KeepAlive(open)
}
