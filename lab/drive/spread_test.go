package drive

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestVariation(t *testing.T) {
	var v Variation
	require.Zero(t, v.Coefficient())
	for _, x := range []int{2, 4, 4, 4, 5, 5, 7, 9} {
		v.Add(x)
	}
	require.InDelta(t, 2./5, v.Coefficient(), 1e-9)
}

// Each arrival sees what its replicas hold at that time; a request counts until its end, not at it.
func TestSpread(t *testing.T) {
	second := time.Second
	samples := []Sample{
		{At: 0, WarmUp: true, Session: "s", Replica: "a", Latency: 10 * second},
		{At: 0, WarmUp: true, Session: "t", Replica: "b", Latency: 2 * second},
		{At: 2 * second, Session: "s", Replica: "a", Latency: 10 * second, Prompt: 100, Cached: 50}, // a: 1, b: 0
		{At: 2 * second, Waited: second, Session: "t", Replica: "a", Latency: 2 * second, Prompt: 100},
		{At: 4 * second, Replica: "b", Latency: second}, // a: 2, b: 0
		{At: 5 * second, Session: "s"},                  // it failed
	}
	r := Summarize("p", 2, samples, Targets{})
	require.Equal(t, 1., r.RequestsCV, "all of the load is on one of two replicas")
	require.Equal(t, .5, r.FollowUpsHome)
	require.Equal(t, .25, r.FollowUpsCached)
	samples[0].Replica = "b" // 0 and 1, 1 and 1, 1 and 1
	require.InDelta(t, 1./3, Summarize("p", 2, samples, Targets{}).RequestsCV, 1e-9)
}
