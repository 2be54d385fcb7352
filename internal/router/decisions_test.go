package router

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Decisions are counted as long as there is somebody to report them to, and not before.
func TestDecisionsAreCountedForAReport(t *testing.T) {
	var d Decisions
	count := func() (sums Decided) {
		d.Count(policy.ReasonRing)
		d.Used(&policy.Request{PromptTokens: 9}, &policy.Decision{MatchedTokens: 4}, policy.Usage{PromptTokens: -1, CachedTokens: 3})
		d.Take(&sums)
		return sums
	}
	require.Equal(t, Decided{}, count())
	d.Begin()
	for range 2 {
		require.Equal(t, Decided{Reasons: map[policy.Reason]uint64{policy.ReasonRing: 1}, Prompt: 9, Matched: 4, Cached: 3}, count())
		d.Begin()
	}
}

// A shadow that learns from routes, of prompts or not, takes back its own picks, which are not sent. A shadow that
// learns nothing keeps them.
func TestShadowsTakeBackPicks(t *testing.T) {
	for name, tt := range map[string]struct {
		observes func(*policy.Observer)
		want     int
	}{
		"nothing":   {func(*policy.Observer) {}, 0},
		"routes":    {func(o *policy.Observer) { o.Routed = func(*policy.Request, policy.Decision) {} }, 1},
		"their end": {func(o *policy.Observer) { o.Completed = func(*policy.Request, policy.Decision, policy.Outcome) {} }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			back := 0
			shadow := policy.Policy{Name: "shadow", Uses: policy.UsesSession, Choose: leastLoaded}
			shadow.Observer.Withdrawn = func(*policy.Request, policy.Decision) { back++ }
			tt.observes(&shadow.Observer)
			r := connected(t, Options{Policy: choosing(leastLoaded), Shadow: shadow}, members(3)...)
			var b Reservation
			q := new(policy.Request)
			require.NoError(t, r.Reserve(context.Background(), q, &b, How{}))
			b.Release()
			require.Equal(t, tt.want, back)
		})
	}
}
