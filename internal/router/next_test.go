package router

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

// The policy that decided for a request also gives the next replica.
func TestNextIsFromTheSamePolicy(t *testing.T) {
	last := func(q *policy.Request, v policy.View) policy.Decision {
		all := v.Connected()
		for i := len(all) - 1; i >= 0; i-- {
			if v.Available(q, all[i]) {
				return policy.To(all[i], "last")
			}
		}
		return policy.Wait()
	}
	for percentage, want := range map[policy.Limit][]string{100: {"r0", "r1", "r2"}, policy.Off: {"r3", "r2", "r1"}} {
		r := connected(t, Options{Policy: previewing(firstFree), Plain: previewing(last)}, members(4)...)
		require.NoError(t, r.Rollout.Set(&percentage))
		q := new(policy.Request)
		b := pick(t, r, q)
		got := []string{b.Decision.Replica.ID}
		for _, d := range r.Next(q, b.Decision.Replica, 2, nil) {
			got = append(got, d.Replica.ID)
		}
		require.Equal(t, want, got)
		b.Release()
	}
}
