package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/routertest"
)

// builtins are the built-in policies, with configs that differ in what the policies learn.
var builtins = []struct{ name, config string }{
	{"round_robin", `{}`},
	{"consistent_hash", `{}`},
	{"power_of_two_choices", `{}`},
	{"prefix_cache_affinity", `{}`},
	{"kv_aware", `{}`},
}

// eachBuiltin runs a test on a Router of each policy over four replicas. build makes another one like it.
func eachBuiltin(t *testing.T, run func(t *testing.T, name string, build func() *router.Router)) {
	for _, b := range builtins {
		t.Run(b.name+b.config, func(t *testing.T) {
			run(t, b.name, func() *router.Router {
				p, err := policy.New(b.name, json.RawMessage(b.config))
				require.NoError(t, err)
				return policytest.NewRouter(t, p, policytest.Fleet(4))
			})
		})
	}
}

// conversation is the i-th of a series of requests, several of which share a system prompt.
func conversation(i int) *policy.Request {
	q := routertest.Prompt(routertest.Tokens(i%3, 640), routertest.Tokens(100+i/2, 900), routertest.Tokens(200+i, 40))
	q.Session = fmt.Sprint("session ", i%7)
	return q
}

// serve routes a request and completes it with an answer.
func serve(t *testing.T, r *router.Router, q *policy.Request) string {
	b := policytest.Pick(t, r, q)
	b.Release()
	r.Complete(q, b.Decision, policy.Outcome{Sent: true, FirstMessage: time.Millisecond, Usage: policy.NoUsage})
	d := b.Decision
	return fmt.Sprint(d.Replica.ID, " ", d.Reason, " ", d.MatchedTokens, " ", d.Place)
}

// query returns the decision for a request without making it.
func query(t *testing.T, r *router.Router, q *policy.Request) policy.Decision {
	b := new(router.Reservation)
	require.NoError(t, r.Reserve(t.Context(), q, b, router.How{Query: true}))
	b.Release()
	return b.Decision
}

// Issue 12.2: requests that are not sent leave no trace in any policy: a Query, and a released reservation.
func TestUnsentLeavesNoTrace(t *testing.T) {
	unsent := map[string]func(t *testing.T, r *router.Router, q *policy.Request){
		"query": func(t *testing.T, r *router.Router, q *policy.Request) {
			query(t, r, q)
		},
		"given back": func(t *testing.T, r *router.Router, q *policy.Request) {
			b := policytest.Pick(t, r, q)
			b.Withdraw(q)
			b.Withdraw(q)
		},
		"given back by its outcome": func(t *testing.T, r *router.Router, q *policy.Request) {
			b := policytest.Pick(t, r, q)
			b.Release()
			r.Complete(q, b.Decision, policy.Outcome{Err: errors.New("no connection"), Usage: policy.NoUsage})
		},
		"given back by the queue": func(t *testing.T, r *router.Router, q *policy.Request) {
			b := new(router.Reservation)
			require.NoError(t, r.Reserve(t.Context(), q, b, router.How{}))
			b.Withdraw(q)
		},
	}
	for name, leave := range unsent {
		t.Run(name, func(t *testing.T) {
			eachBuiltin(t, func(t *testing.T, policyName string, build func() *router.Router) {
				if policyName == "power_of_two_choices" {
					t.Skip("it remembers nothing, and draws at random")
				}
				plain, asked := build(), build()
				for i := range 40 {
					if i > 0 {
						for range i % 4 {
							leave(t, asked, conversation(i+1)) // the next request
						}
						leave(t, asked, conversation(1000+i)) // a request that is never sent
					}
					require.Equal(t, serve(t, plain, conversation(i)), serve(t, asked, conversation(i)), "request %d", i)
				}
			})
		})
	}
}

// Issue 12.2: concurrently prepared requests do not count a released pick as one that warms its replica.
func TestUnsentLeavesNoTraceInABurst(t *testing.T) {
	eachBuiltin(t, func(t *testing.T, _ string, build func() *router.Router) {
		r := build()
		prompt := routertest.Tokens(1, 8000)
		late := routertest.Prompt(prompt)
		r.Prepare(t.Context(), late)
		q := routertest.Prompt(prompt)
		b := policytest.Pick(t, r, q)
		b.Withdraw(q)
		require.Zero(t, query(t, r, late).MatchedTokens)
	})
}

// Issue 12.42: tokens that an attempt did not prefill are in no policy's view, whatever ended the attempt.
func TestFailedAttemptsWarmNothing(t *testing.T) {
	failure := errors.New("refused")
	for name, o := range map[string]policy.Outcome{
		"refused":   {Err: failure, Sent: true, Usage: policy.NoUsage},
		"broken":    {Err: failure, Sent: true, Fault: policy.Failed, Usage: policy.NoUsage},
		"late":      {Err: context.DeadlineExceeded, Sent: true, Fault: policy.TimedOut, Usage: policy.NoUsage},
		"cancelled": {Err: context.Canceled, Sent: true, Fault: policy.GivenUp, Usage: policy.NoUsage},
	} {
		t.Run(name, func(t *testing.T) {
			eachBuiltin(t, func(t *testing.T, policyName string, build func() *router.Router) {
				r := build()
				system, doc := routertest.Tokens(1, 640), routertest.Tokens(2, 4000)
				serve(t, r, routertest.Prompt(system, routertest.Tokens(3, 320)))
				for range 3 {
					q := routertest.Prompt(system, doc)
					late := routertest.Prompt(system, doc) // prepared before the failure, and served after it
					r.Prepare(t.Context(), late)
					b := policytest.Pick(t, r, q)
					b.Release()
					r.Complete(q, b.Decision, o)
					require.LessOrEqual(t, query(t, r, late).MatchedTokens, 640)
					require.LessOrEqual(t, query(t, r, routertest.Prompt(system, doc)).MatchedTokens, 640)
				}
			})
		})
	}
}

// Issue 12.42: prompts with a common prefix are under way on one replica, and one fails. The failure removes only the
// blocks that no other prompt brings there, in any order of starts and ends.
func TestFailedAttemptsTakeNothingFromOthers(t *testing.T) {
	eachBuiltin(t, func(t *testing.T, policyName string, build func() *router.Router) {
		if policyName != "prefix_cache_affinity" && policyName != "kv_aware" {
			t.Skip("it does not look at prompts")
		}
		failed := policy.Outcome{Err: errors.New("refused"), Sent: true, Usage: policy.NoUsage}
		well := policy.Outcome{Sent: true, FirstMessage: time.Second, Usage: policy.NoUsage}
		doc := routertest.Tokens(1, 3200)
		for orders := range 8 {
			r := build()
			var qs [2]*policy.Request
			var bs [2]*router.Reservation
			for i := range qs {
				qs[i] = routertest.Prompt(doc, routertest.Tokens(2+i, 640))
				qs[i].Exclude = []string{"r1", "r2", "r3"}
				bs[i] = policytest.Pick(t, r, qs[i])
			}
			failing, first := orders&1, orders>>1&1
			for _, i := range []int{first, 1 - first} {
				bs[i].Release()
				if i == failing {
					r.Complete(qs[i], bs[i].Decision, failed)
				} else {
					r.Complete(qs[i], bs[i].Decision, well)
				}
			}
			for i, want := range []int{3840, 3840} {
				if i == failing {
					want = 3200
				}
				q := routertest.Prompt(doc, routertest.Tokens(2+i, 640))
				q.Exclude = qs[0].Exclude
				require.Equal(t, want, query(t, r, q).MatchedTokens, "order %b, prompt %d", orders, i)
			}
		}
	})
}

// Issue 12.42: other clients learn only the routes that replicas prefilled, once each.
func TestOnlyPrefilledRoutesAreShared(t *testing.T) {
	eachBuiltin(t, func(t *testing.T, _ string, build func() *router.Router) {
		r := build()
		if !r.Routes.Shares() {
			t.Skip("it does not look at prompts")
		}
		var log router.RouteLog
		r.Routes.Share(log.Add)
		for i, tt := range []struct {
			answers bool
			outcome policy.Outcome
			routes  int
		}{
			{false, policy.Outcome{Err: errors.New("refused"), Sent: true, Usage: policy.NoUsage}, 0},
			{false, policy.Outcome{Usage: policy.NoUsage}, 0},
			{false, policy.Outcome{Sent: true, Usage: policy.NoUsage}, 1},
			{true, policy.Outcome{Sent: true, FirstMessage: time.Second, Usage: policy.NoUsage}, 1},
			{true, policy.Outcome{Err: errors.New("broken"), Sent: true, FirstMessage: time.Second, Usage: policy.NoUsage}, 1},
		} {
			q := routertest.Prompt(routertest.Tokens(i, 2048))
			b := policytest.Pick(t, r, q)
			require.Empty(t, log.Take(), "not yet")
			var early []router.Route
			if tt.answers {
				b.Answered()
				early = log.Take()
				require.Len(t, early, tt.routes)
			}
			b.Release()
			r.Complete(q, b.Decision, tt.outcome)
			all := append(early, log.Take()...)
			require.Len(t, all, tt.routes)
			for _, route := range all {
				require.Equal(t, b.Decision.Replica.ID, route.Replica)
				require.Len(t, route.Superblocks, 4)
			}
		}
	})
}
