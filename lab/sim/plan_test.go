package sim

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/lab/workload"
)

func TestPlan(t *testing.T) {
	d := Demo{Replicas: 2, Workload: "chat", Unshared: 0.4, Seed: 1, Load: 0.7, Share: time.Second / 2}
	p, err := d.Plan(t.Context())
	require.NoError(t, err)
	require.GreaterOrEqual(t, p.Unshared, 0.4)
	require.LessOrEqual(t, p.Speed, float64(MaxSpeed))
	require.InDelta(t, p.Speed/2, p.Length.Seconds(), 1)
	require.True(t, slices.IsSortedFunc(p.Requests, func(a, b workload.Request) int { return int(a.At - b.At) }))
	require.Positive(t, p.Measured)
	require.Less(t, p.Measured, len(p.Requests))

	d.Speed = 7
	p, err = d.Plan(t.Context())
	require.NoError(t, err)
	require.Equal(t, 7., p.Speed)
	d.Workload = "none"
	_, err = d.Plan(t.Context())
	require.ErrorContains(t, err, "none")

	for share, speed := range map[time.Duration]float64{time.Second: MaxSpeed, 10 * time.Second: 30, 10 * time.Minute: 1} {
		require.Equal(t, speed, Demo{Share: share}.speed(), "5 minutes of engine time, and no slower than real engines")
	}
}
