package router

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router/state"
)

// pairing counts the routes that it observes, by request, and requires one end for each.
type pairing struct {
	t     *testing.T
	under map[*policy.Request]int
	ends  int
}

func (p *pairing) policy() policy.Policy {
	return policy.Policy{
		Uses: policy.UsesSession, Choose: firstFree, Observer: policy.Observer{Routed: p.routed, Completed: p.completed},
	}
}

func (p *pairing) routed(q *policy.Request, d policy.Decision) {
	p.under[q]++
	require.Equal(p.t, 1, p.under[q])
}

func (p *pairing) completed(q *policy.Request, d policy.Decision, o policy.Outcome) {
	p.under[q]--
	p.ends++
	require.Zero(p.t, p.under[q], "the end of a route that it did not observe")
}

// However the kill switch and the percentage change between a pick and its end, the policy and its shadow observe
// the end of each route that they observed, and of no other.
func TestEndsBelongToRoutes(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		pol, shadow := &pairing{t: t, under: map[*policy.Request]int{}}, &pairing{t: t, under: map[*policy.Request]int{}}
		r := connected(t, Options{Policy: pol.policy(), Plain: choosing(leastLoaded), Shadow: shadow.policy()}, members(3)...)
		type call struct {
			q *policy.Request
			b *Reservation
		}
		var calls []*call
		end := func(c *call) {
			switch rnd.IntN(4) {
			case 0:
				c.b.Withdraw(c.q)
				c.b.Withdraw(c.q)
			case 1:
				r.Complete(c.q, c.b.Decision, policy.Outcome{Sent: true, Usage: policy.NoUsage})
				c.b.Release()
			default:
				c.b.Release()
				r.Complete(c.q, c.b.Decision, policy.Outcome{Sent: true, Usage: policy.NoUsage})
			}
		}
		for range 200 {
			switch rnd.IntN(4) {
			case 0:
				require.NoError(t, r.Rollout.Set([]*policy.Limit{nil, new(policy.Limit(50)), new(policy.Limit(0)), new(policy.Limit(policy.Off))}[rnd.IntN(4)]))
			case 1:
				if len(calls) == 0 {
					continue
				}
				i := rnd.IntN(len(calls))
				c := calls[i]
				end(c)
				if rnd.IntN(2) == 0 { // another attempt
					NextAttempt(c.q, c.b.Decision.Replica)
					require.NoError(t, r.Reserve(t.Context(), c.q, c.b, How{NoWait: true}))
					continue
				}
				calls = append(calls[:i], calls[i+1:]...)
			default:
				c := &call{new(policy.Request), new(Reservation)}
				var err error
				switch rnd.IntN(5) {
				case 0:
					err = r.Reserve(t.Context(), c.q, c.b, How{Query: true})
				case 1:
					err = r.Reserve(t.Context(), c.q, c.b, How{Assigned: &Assigned{Replica: "r1", Decision: policy.Decision{Reason: policy.ReasonCentral}}})
				case 2:
					err = r.Reserve(t.Context(), c.q, c.b, How{Ticket: new(Ticket)})
				case 3:
					err = r.Reserve(t.Context(), c.q, c.b, How{})
				default:
					err = r.Reserve(t.Context(), c.q, c.b, How{NoWait: true})
				}
				require.NoError(t, err)
				calls = append(calls, c)
			}
		}
		for _, c := range calls {
			end(c)
		}
		for _, p := range []*pairing{pol, shadow} {
			for _, n := range p.under {
				require.Zero(t, n, "seed %d: a route without an end", seed)
			}
			require.NotZero(t, p.ends)
		}
	}
}

// A request that was never sent does not count for the replica's health, and its reservation is released.
func TestWithdraw(t *testing.T) {
	now := time.Unix(1000, 0)
	r := connected(t, Options{Ejection: &policy.Ejection{Failures: 1, SlowStart: -1}, Now: func() time.Time { return now }}, members(2)...)
	for range 5 {
		q := answering(state.AnswerWhole, policy.Request{})
		b := pick(t, r, q)
		rep := b.Decision.Replica
		b.Withdraw(q)
		b.Withdraw(q)
		require.Zero(t, rep.Ongoing())
		state, _ := r.Outliers().State(r.Outlier(rep))
		require.Equal(t, outlier.Healthy, state)
	}
	new(Reservation).Withdraw(new(policy.Request))
}
