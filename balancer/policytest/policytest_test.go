package policytest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/routertest"
)

func TestClock(t *testing.T) {
	c := routertest.NewClock()
	start := c.Now()
	c.Advance(90 * time.Second)
	require.Equal(t, 90*time.Second, c.Now().Sub(start))
}

func TestFillReleasesTheOldest(t *testing.T) {
	r := policytest.NewRouter(t, leastLoaded(), policytest.Fleet(2))
	release := policytest.Fill(t, r, "r1", 3)
	require.Equal(t, map[string]int{"r0": 0, "r1": 3}, routertest.Ongoing(r))
	release(2)
	release(1)
	require.Equal(t, map[string]int{"r0": 0, "r1": 0}, routertest.Ongoing(r))
}

// leastLoaded is a minimal policy.
func leastLoaded() policy.Policy {
	return policy.Policy{Choose: func(q *policy.Request, v policy.View) policy.Decision {
		if r := v.LeastLoaded(q); r != nil {
			return policy.To(r, policy.ReasonLeastLoaded)
		}
		return policy.Wait()
	}}
}

func TestConform(t *testing.T) {
	policytest.Conform(t, leastLoaded)
}

// recorder keeps the errors of a check instead of failing the test.
type recorder struct {
	testing.TB
	errors []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

func TestCheckFindsErrors(t *testing.T) {
	fleet := policytest.Bounded(policytest.Fleet(5), 1)
	fleet[2].Draining = true
	fleet[3].Models = []string{"other"}
	fleet[4].Models = []string{"m"}
	r := policytest.NewRouter(t, leastLoaded(), fleet)
	policytest.Fill(t, r, "r1", 1)
	v := r.View()
	q := &policy.Request{Model: "m", Exclude: []string{"r4"}}
	to := func(id string) policy.Decision { return policy.To(v.ByID(id), policy.ReasonLeastLoaded) }
	gone := policy.To(&policy.Replica{Attributes: policy.Attributes{ID: "gone"}}, "why")
	for want, d := range map[string]policy.Decision{
		"r1, which is full":                       to("r1"),
		"r2, which is draining":                   to("r2"),
		"does not serve the model":                to("r3"),
		"r4, which the request excludes":          to("r4"),
		"not in the fleet":                        gone,
		"gives no reason":                         policy.To(v.ByID("r0"), ""),
		"waits for any replica while r0 is avail": policy.Wait(),
		"waits for r0, which is not a full one":   policy.Wait(v.ByID("r0")),
		"picked r0 with place -2":                 {Replica: v.ByID("r0"), Reason: "why", Place: -2},
		"picked r0 with place 0 and 7 matched t":  {Replica: v.ByID("r0"), Reason: "why", MatchedTokens: 7},
	} {
		rec := &recorder{TB: t}
		routertest.Check(rec, q, v, d)
		require.Truef(t, slices.ContainsFunc(rec.errors, func(s string) bool {
			return strings.Contains(s, want)
		}), "%q: %q", want, rec.errors)
	}
	for _, d := range []policy.Decision{to("r0"), policy.Wait(v.ByID("r1"))} {
		rec := &recorder{TB: t}
		routertest.Check(rec, q, v, d)
		require.Empty(t, rec.errors)
	}
	r.Fleet.SetConnected("r0", false)
	rec := &recorder{TB: t}
	routertest.Check(rec, q, r.View(), to("r0"))
	require.Len(t, rec.errors, 1)
	require.Contains(t, rec.errors[0], "not connected")
}
