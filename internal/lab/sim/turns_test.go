package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/lab/sim/baseline"
	"github.com/warmpath/warmpath/internal/lab/workload"
)

// The prefill leg of the next turn computes only what is new, if the turn is still kept. In the end no turn is
// kept.
func TestTurns(t *testing.T) {
	first := []workload.Segment{{Seed: 1, Len: 4000}}
	next := append(first[:1:1],
		workload.Segment{Seed: workload.OutputSeed("a"), Len: 500}, workload.Segment{Seed: 2, Len: 300})
	long := 8 * time.Minute
	for name, tt := range map[string]struct {
		session string
		hold    time.Duration
		change  func(*workload.Request) // of the next turn
		want    int                     // tokens that its prefill leg gets
	}{
		"a session":       {session: "s", hold: long, want: 4499 - 4000},
		"no session":      {hold: long, want: 4499 - 4000},
		"not kept":        {session: "s"},
		"no longer kept":  {session: "s", hold: time.Minute},
		"another session": {session: "s", hold: long, change: func(q *workload.Request) { q.Session = "t" }},
		"a shorter prompt": {session: "s", hold: long, change: func(q *workload.Request) {
			q.Segments, q.PromptTokens = next[:1], 4000
		}},
		"another first turn": {session: "s", hold: long, change: func(q *workload.Request) {
			q.Segments = []workload.Segment{{Seed: 9, Len: 4800}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			rs := []workload.Request{
				{ID: "a", Session: tt.session, PromptTokens: 4000, OutputTokens: 500, Segments: first},
				{ID: "b", Session: tt.session, PromptTokens: 4800, OutputTokens: 5, Segments: next, At: 2 * time.Minute},
			}
			if tt.change != nil {
				tt.change(&rs[1])
			}
			r, err := newRun(NewPrompts(rs), Config{Replicas: 2, Clients: 1, Prefill: 1, Decode: 1, Split: "always",
				Channel: named("round_robin"), Seed: 1})
			require.NoError(t, err)
			r.turns.hold = tt.hold
			require.NoError(t, r.all(t.Context()))
			require.NoError(t, r.settled())
			require.Equal(t, tt.want, r.machines[0].engine.Stats().ReceivedTokens)
			if tt.want > 0 {
				require.Equal(t, 4800-4499, r.samples[1].Computed)
			}
			for _, m := range r.machines {
				require.Zero(t, m.engine.Load().UsedTokens)
			}
		})
	}
	require.Equal(t, time.Minute, baseline.Hold("pull_60"))
	require.Zero(t, baseline.Hold(baseline.SplitCost))
}
