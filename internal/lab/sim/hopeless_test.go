package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/lab/drive"
	"github.com/warmpath/warmpath/internal/lab/enginesim"
)

func TestLongestPromptInTime(t *testing.T) {
	c := enginesim.Config{KVTokens: 1_024_000}
	n, err := longest(c, drive.Targets{})
	require.NoError(t, err)
	e, err := enginesim.New(c)
	require.NoError(t, err)
	var failed error
	require.True(t, inTime(e.Config(), n, drive.Targets{}, &failed))
	require.False(t, inTime(e.Config(), n+1, drive.Targets{}, &failed))
	require.NoError(t, failed)
	shorter, err := longest(c, drive.Targets{TTFT: time.Second})
	require.NoError(t, err)
	require.Less(t, shorter, n/2)
}
