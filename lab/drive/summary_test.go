package drive

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

func TestDescribe(t *testing.T) {
	require.Zero(t, Describe(nil))
	require.Equal(t, Distribution{Mean: 7, P50: 7, P90: 7, P99: 7}, Describe([]float64{7}))
	require.Equal(t, Distribution{Mean: 1.5, P50: 1, P90: 2, P99: 2}, Describe([]float64{2, 1}))
	xs := make([]float64, 100)
	for i := range xs {
		xs[i] = float64(i + 1)
	}
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(xs), func(i, j int) { xs[i], xs[j] = xs[j], xs[i] })
	require.Equal(t, Distribution{Mean: 50.5, P50: 50, P90: 90, P99: 99}, Describe(xs))
	require.Equal(t, Distribution{Mean: 51, P50: 51, P90: 91, P99: 100}, Describe(append(xs, 101)))
}

func TestSummarize(t *testing.T) {
	second := time.Second
	samples := []Sample{
		{At: 0, WarmUp: true, TTFT: time.Hour, Prompt: 1000, Computed: 1000, Output: 5, Replica: "a", Reason: policy.ReasonRing},
		{At: 1 * second, Lag: 4 * time.Millisecond, TTFT: second, Latency: 2 * second, TPOT: 10 * time.Millisecond,
			Prompt: 100, Cached: 60, Computed: 40, Output: 101, Replica: "a", Reason: policy.ReasonRing},
		{At: 2 * second, TTFT: 6 * second, Latency: 7 * second, TPOT: 10 * time.Millisecond,
			Prompt: 100, Computed: 110, Output: 101, Replica: "b", Reason: policy.ReasonRing}, // too late, preempted once
		{At: 3 * second, TTFT: second, Latency: 3 * second, TPOT: 200 * time.Millisecond,
			Prompt: 100, Cached: 50, Computed: 50, Output: 11, Replica: "a", Reason: policy.ReasonRingFallback}, // too slow
		{At: 4 * second, TTFT: second, Latency: second, Prompt: 100, Cached: 50, Computed: 50, Output: 1, Replica: "b", Reason: policy.ReasonRing},
		{At: 5 * second, Prompt: 100, Computed: 100, Err: errors.New("lost"), Replica: "b", Reason: policy.ReasonRing},
	}
	r := Summarize("p", 3, samples, Targets{})
	require.Equal(t, 5, r.Requests)
	require.Equal(t, 1, r.Errors)
	require.EqualError(t, r.FirstError, "lost")
	require.Equal(t, 0.4, r.CachedTokenRatio)
	require.Equal(t, 0.4, r.Goodput)
	require.Equal(t, 0.6, Summarize("p", 3, samples, Targets{TTFT: 6 * second}).Goodput)
	require.Equal(t, 0.6, Summarize("p", 3, samples, Targets{TPOT: 200 * time.Millisecond}).Goodput)
	require.Equal(t, 0.0, Summarize("p", 3, samples, Targets{TTFT: second / 2}).Goodput)
	require.Equal(t, 2250., r.TTFT.Mean)
	require.Equal(t, 6000., r.TTFT.P90)
	require.InDelta(t, 220./3, r.TPOT.Mean, 1e-9, "an answer of one token has none")
	require.InDelta(t, 214./8, r.OutputTokensPerS, 1e-9, "from 1 s to 9 s")
	require.Equal(t, map[string]int{"ring": 4, "ring_fallback": 1}, r.Decisions)
	require.Equal(t, map[string]int{"a": 90, "b": 260}, r.Loads)
	require.InDelta(t, 260*3/350., r.MaxOverMeanLoad, 1e-9, "the third replica was idle")
	require.InDelta(t, 260*2/350., Summarize("p", 0, samples, Targets{}).MaxOverMeanLoad, 1e-9)
	require.Equal(t, 4., r.Lag.P99)
}

// Without measurements the results are zeros, not NaN, which JSON does not have.
func TestSummarizeNothing(t *testing.T) {
	for _, samples := range [][]Sample{nil, {{Err: errors.New("lost")}}, {{WarmUp: true}}} {
		_, err := json.Marshal(Summarize("p", 2, samples, Targets{}))
		require.NoError(t, err)
	}
}

func TestJSONShape(t *testing.T) {
	c := Comparison{Replicas: 4, Clients: 2, Requests: 3, Results: []Result{{Policy: "p", Decisions: map[string]int{"ring": 3}}}}
	got, err := json.Marshal(c)
	require.NoError(t, err)
	zeros := `{"mean":0,"p50":0,"p90":0,"p99":0}`
	require.Equal(t, `{"replicas":4,"clients":2,"requests":3,"results":[{"policy":"p","requests":0,"errors":0,"cached_token_ratio":0,`+
		`"ttft_ms":`+zeros+`,"tpot_ms":`+zeros+`,"latency_ms":`+zeros+`,"goodput":0,"output_tokens_per_s":0,`+
		`"max_over_mean_load":0,"requests_cv":0,"follow_ups_home":0,"follow_ups_cached":0,"decisions":{"ring":3}}]}`, string(got))
}
