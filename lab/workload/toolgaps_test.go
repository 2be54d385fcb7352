package workload

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestToolGaps(t *testing.T) {
	make := func() (rs []Request) {
		for s := range 400 {
			for turn := range 10 {
				rs = append(rs, Request{ID: fmt.Sprint(s, ".", turn), Session: fmt.Sprint(s), OutputTokens: 40,
					At: time.Duration(s)*time.Second + time.Duration(turn)*time.Millisecond})
			}
		}
		rs = append(rs, Request{ID: "alone", At: 7 * time.Second})
		Sort(rs)
		return rs
	}
	rs := make()
	ToolGaps(rs, 1)
	require.True(t, slices.IsSortedFunc(rs, func(a, b Request) int { return int(a.At - b.At) }))
	last, upTo1s, upTo10s, gaps := map[string]Request{}, 0, 0, 0
	for _, r := range rs {
		if r.Session == "" {
			require.Equal(t, 7*time.Second, r.At, "it keeps its time")
			continue
		}
		before, later := last[r.Session]
		if last[r.Session] = r; !later {
			require.Zero(t, r.Turn)
			require.Less(t, r.At, 400*time.Second)
			continue
		}
		require.Equal(t, before.Turn+1, r.Turn, "turns keep their order")
		gap := r.At - before.At - 40*nominalToken
		require.Positive(t, gap)
		require.LessOrEqual(t, gap, 300*time.Second)
		gaps++
		if gap <= time.Second {
			upTo1s++
		}
		if gap <= 10*time.Second {
			upTo10s++
		}
	}
	require.Equal(t, 400*9, gaps)
	require.InDelta(t, 0.865, float64(upTo1s)/float64(gaps), 0.02)
	require.InDelta(t, 0.951, float64(upTo10s)/float64(gaps), 0.015)
	again, other := make(), make()
	ToolGaps(again, 1)
	ToolGaps(other, 2)
	require.Equal(t, rs, again)
	require.NotEqual(t, rs, other)
}
