package sim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/enginesim"
)

func TestLongestPromptInTime(t *testing.T) {
	c := enginesim.Config{KVTokens: 1_024_000}
	n, err := longest(c)
	require.NoError(t, err)
	e, err := enginesim.New(c)
	require.NoError(t, err)
	var failed error
	require.True(t, inTime(e.Config(), n, &failed))
	require.False(t, inTime(e.Config(), n+1, &failed))
	require.NoError(t, failed)
}
