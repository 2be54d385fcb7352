package client

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBackoff(t *testing.T) {
	want := []time.Duration{0, 25, 50, 100, 200, 400, 500, 500}
	for i, ms := range want {
		require.Equal(t, ms*time.Millisecond, backoff(i+1), "after %d failed attempts", i+1)
	}
	require.Equal(t, 500*time.Millisecond, backoff(1<<30))
}
