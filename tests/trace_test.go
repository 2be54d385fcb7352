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
	"github.com/warmpath/warmpath/balancer/routing"
)

// builtins are the built-in policies with the configs under which they learn differently.
var builtins = []struct{ name, config string }{
	{"round_robin", `{}`},
	{"consistent_hash", `{}`},
	{"power_of_two_choices", `{}`},
	{"prefix_cache_affinity", `{}`},
	{"prefix_cache_affinity", `{"on_miss":"smallest"}`},
	{"kv_aware", `{}`},
}

// eachBuiltin runs a test on a Router of each over four replicas; build makes another one like it.
func eachBuiltin(t *testing.T, run func(t *testing.T, name string, build func() *routing.Router)) {
	for _, b := range builtins {
		t.Run(b.name+b.config, func(t *testing.T) {
			run(t, b.name, func() *routing.Router {
				p, err := policy.New(b.name, json.RawMessage(b.config))
				require.NoError(t, err)
				return policytest.NewRouter(t, p, policytest.Fleet(4))
			})
		})
	}
}

// conversation is the i-th of a series of requests of which several share a system prompt.
func conversation(i int) *routing.Request {
	q := policytest.Prompt(policytest.Tokens(i%3, 640), policytest.Tokens(100+i/2, 900), policytest.Tokens(200+i, 40))
	q.Session = fmt.Sprint("session ", i%7)
	return q
}

// serve routes a request and has it answered.
func serve(t *testing.T, r *routing.Router, q *routing.Request) string {
	b := policytest.Pick(t, r, q)
	b.Release()
	r.Complete(q, b.Decision, routing.Outcome{Sent: true, FirstMessage: time.Millisecond, Usage: routing.NoUsage})
	d := b.Decision
	return fmt.Sprint(d.Replica.ID, " ", d.Reason, " ", d.MatchedTokens, " ", d.Place)
}

// query returns what would be decided.
func query(t *testing.T, r *routing.Router, q *routing.Request) routing.Decision {
	b := new(routing.Booking)
	require.NoError(t, r.Query(t.Context(), q, b))
	b.Release()
	return b.Decision
}

// Issue 12.2: what is not sent leaves no trace in any policy: a Query, and a reservation that is given back.
func TestUnsentLeavesNoTrace(t *testing.T) {
	unsent := map[string]func(t *testing.T, r *routing.Router, q *routing.Request){
		"query": func(t *testing.T, r *routing.Router, q *routing.Request) {
			query(t, r, q)
		},
		"asked for room": func(t *testing.T, r *routing.Router, q *routing.Request) {
			require.True(t, r.HasRoom(t.Context(), q))
		},
		"given back": func(t *testing.T, r *routing.Router, q *routing.Request) {
			b := policytest.Pick(t, r, q)
			b.Withdraw(q)
			b.Withdraw(q)
		},
		"given back by its outcome": func(t *testing.T, r *routing.Router, q *routing.Request) {
			b := policytest.Pick(t, r, q)
			b.Release()
			r.Complete(q, b.Decision, routing.Outcome{Err: errors.New("no connection"), Usage: routing.NoUsage})
		},
		"given back by the queue": func(t *testing.T, r *routing.Router, q *routing.Request) {
			b := new(routing.Booking)
			require.NoError(t, r.Acquire(t.Context(), q, b))
			b.Withdraw(q)
		},
	}
	for name, leave := range unsent {
		t.Run(name, func(t *testing.T) {
			eachBuiltin(t, func(t *testing.T, policy string, build func() *routing.Router) {
				if policy == "power_of_two_choices" {
					t.Skip("it remembers nothing, and draws at random")
				}
				plain, asked := build(), build()
				for i := range 40 {
					if i > 0 {
						for range i % 4 {
							leave(t, asked, conversation(i+1)) // the next one
						}
						leave(t, asked, conversation(1000+i)) // never sent
					}
					require.Equal(t, serve(t, plain, conversation(i)), serve(t, asked, conversation(i)), "request %d", i)
				}
			})
		})
	}
}

// Issue 12.2: requests that are prepared together do not take a pick that is given back for one that warms its replica.
func TestUnsentLeavesNoTraceInABurst(t *testing.T) {
	eachBuiltin(t, func(t *testing.T, _ string, build func() *routing.Router) {
		r := build()
		prompt := policytest.Tokens(1, 8000)
		late := policytest.Prompt(prompt)
		r.Prepare(t.Context(), late)
		q := policytest.Prompt(prompt)
		b := policytest.Pick(t, r, q)
		b.Withdraw(q)
		require.Zero(t, query(t, r, late).MatchedTokens)
	})
}

// Issue 12.42: what an attempt did not prefill is in no policy's view, whatever ended it.
func TestFailedAttemptsWarmNothing(t *testing.T) {
	failure := errors.New("refused")
	for name, o := range map[string]routing.Outcome{
		"refused":   {Err: failure, Sent: true, Usage: routing.NoUsage},
		"broken":    {Err: failure, Sent: true, Fault: routing.Failed, Usage: routing.NoUsage},
		"late":      {Err: context.DeadlineExceeded, Sent: true, Fault: routing.TimedOut, Usage: routing.NoUsage},
		"cancelled": {Err: context.Canceled, Sent: true, Fault: routing.GivenUp, Usage: routing.NoUsage},
	} {
		t.Run(name, func(t *testing.T) {
			eachBuiltin(t, func(t *testing.T, policy string, build func() *routing.Router) {
				r := build()
				system, doc := policytest.Tokens(1, 640), policytest.Tokens(2, 4000)
				serve(t, r, policytest.Prompt(system, policytest.Tokens(3, 320)))
				for range 3 {
					q := policytest.Prompt(system, doc)
					late := policytest.Prompt(system, doc) // prepared before, and served after
					r.Prepare(t.Context(), late)
					b := policytest.Pick(t, r, q)
					b.Release()
					r.Complete(q, b.Decision, o)
					require.LessOrEqual(t, query(t, r, late).MatchedTokens, 640)
					require.LessOrEqual(t, query(t, r, policytest.Prompt(system, doc)).MatchedTokens, 640)
				}
			})
		})
	}
}

// Issue 12.42: of prompts under way on one replica that begin alike, a failure takes back only what no other one
// brings there, whichever comes and ends first.
func TestFailedAttemptsTakeNothingFromOthers(t *testing.T) {
	eachBuiltin(t, func(t *testing.T, policy string, build func() *routing.Router) {
		if policy != "prefix_cache_affinity" && policy != "kv_aware" {
			t.Skip("it does not look at prompts")
		}
		failed := routing.Outcome{Err: errors.New("refused"), Sent: true, Usage: routing.NoUsage}
		well := routing.Outcome{Sent: true, FirstMessage: time.Second, Usage: routing.NoUsage}
		doc := policytest.Tokens(1, 3200)
		for orders := range 8 {
			r := build()
			var qs [2]*routing.Request
			var bs [2]*routing.Booking
			for i := range qs {
				qs[i] = policytest.Prompt(doc, policytest.Tokens(2+i, 640))
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
				q := policytest.Prompt(doc, policytest.Tokens(2+i, 640))
				q.Exclude = qs[0].Exclude
				require.Equal(t, want, query(t, r, q).MatchedTokens, "order %b, prompt %d", orders, i)
			}
		}
	})
}

// Issue 12.42: what other clients learn of routes is what replicas prefilled, once each.
func TestOnlyPrefilledRoutesAreShared(t *testing.T) {
	eachBuiltin(t, func(t *testing.T, _ string, build func() *routing.Router) {
		r := build()
		if !r.SharesRoutes() {
			t.Skip("it knows no prompts")
		}
		var log routing.RouteLog
		r.ShareRoutes(log.Add)
		for i, tt := range []struct {
			answers bool
			outcome routing.Outcome
			routes  int
		}{
			{false, routing.Outcome{Err: errors.New("refused"), Sent: true, Usage: routing.NoUsage}, 0},
			{false, routing.Outcome{Usage: routing.NoUsage}, 0},
			{false, routing.Outcome{Sent: true, Usage: routing.NoUsage}, 1},
			{true, routing.Outcome{Sent: true, FirstMessage: time.Second, Usage: routing.NoUsage}, 1},
			{true, routing.Outcome{Err: errors.New("broken"), Sent: true, FirstMessage: time.Second, Usage: routing.NoUsage}, 1},
		} {
			q := policytest.Prompt(policytest.Tokens(i, 2048))
			b := policytest.Pick(t, r, q)
			require.Empty(t, log.Take(), "not yet")
			var early []routing.Route
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
