package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/lab/drive"
	"github.com/warmpath/warmpath/lab/enginesim"
)

func TestLongestPromptInTime(t *testing.T) {
	e, err := enginesim.New(enginesim.Config{KVTokens: 1_024_000})
	require.NoError(t, err)
	n := longest(e.Config(), drive.Targets{})
	c := e.Config()
	ttft := func(n int) time.Duration {
		idle, err := enginesim.New(c)
		require.NoError(t, err)
		seq, err := idle.Submit(0, enginesim.FromTokens("x", make([]uint32, n), 1, c.BlockSize, 0))
		require.NoError(t, err)
		for at, busy := idle.NextStep(); busy; at, busy = idle.NextStep() {
			idle.Step(at)
		}
		result := seq.Result()
		return result.TTFT()
	}
	require.LessOrEqual(t, ttft(n), drive.GoodTTFT)
	require.Greater(t, ttft(n+1), drive.GoodTTFT)
	require.Less(t, longest(e.Config(), drive.Targets{TTFT: time.Second}), n/2)
}
