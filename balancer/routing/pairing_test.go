package routing

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/outlier"
)

// A pairing counts the routes that it was told of, by request, and wants one end for each.
type pairing struct {
	t     *testing.T
	under map[*Request]int
	ends  int
}

func (p *pairing) Uses() Uses { return UsesSession }

func (p *pairing) Prepare(_ context.Context, q *Request, v *View) error { return nil }

func (p *pairing) Choose(q *Request, v *View) Decision { return firstFree(q, v) }

func (p *pairing) Routed(q *Request, d Decision) {
	p.under[q]++
	require.Equal(p.t, 1, p.under[q])
}

func (p *pairing) Completed(q *Request, d Decision, o Outcome) {
	p.under[q]--
	p.ends++
	require.Zero(p.t, p.under[q], "the end of a route that it was not told of")
}

// Whatever becomes of the kill switch and the percentage between a pick and its end, the policy and its shadow are told
// of the end of each route that they were told of, and of no other.
func TestEndsBelongToRoutes(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		policy, shadow := &pairing{t: t, under: map[*Request]int{}}, &pairing{t: t, under: map[*Request]int{}}
		r := connected(t, Options{Policy: policy, Plain: choosing(leastLoaded), Shadow: shadow}, members(3)...)
		type call struct {
			q *Request
			b *Booking
		}
		var calls []*call
		end := func(c *call) {
			switch rnd.IntN(4) {
			case 0:
				c.b.Withdraw(c.q)
				c.b.Withdraw(c.q)
			case 1:
				r.Complete(c.q, c.b.Decision, Outcome{Sent: true, Usage: NoUsage})
				c.b.Release()
			default:
				c.b.Release()
				r.Complete(c.q, c.b.Decision, Outcome{Sent: true, Usage: NoUsage})
			}
		}
		for range 200 {
			switch rnd.IntN(4) {
			case 0:
				require.NoError(t, r.SetRollout(Rollout{Share: float64(rnd.IntN(3)) / 2, Off: rnd.IntN(3) == 0}))
			case 1:
				if len(calls) == 0 {
					continue
				}
				i := rnd.IntN(len(calls))
				c := calls[i]
				end(c)
				if rnd.IntN(2) == 0 { // another attempt
					c.q.NextAttempt(c.b.Decision.Replica)
					require.NoError(t, r.Pick(t.Context(), c.q, c.b))
					continue
				}
				calls = append(calls[:i], calls[i+1:]...)
			default:
				c := &call{new(Request), new(Booking)}
				var err error
				switch rnd.IntN(5) {
				case 0:
					err = r.Query(t.Context(), c.q, c.b)
				case 1:
					err = r.Honour(c.q, "r1", Decision{Reason: ReasonCentral}, c.b)
				case 2:
					_, err = r.Queue(t.Context(), c.q, c.b)
				case 3:
					err = r.Acquire(t.Context(), c.q, c.b)
				default:
					err = r.Pick(t.Context(), c.q, c.b)
				}
				require.NoError(t, err)
				calls = append(calls, c)
			}
		}
		for _, c := range calls {
			end(c)
		}
		for _, p := range []*pairing{policy, shadow} {
			for _, n := range p.under {
				require.Zero(t, n, "seed %d: a route without an end", seed)
			}
			require.NotZero(t, p.ends)
		}
	}
}

// What was never sent says nothing of the replica's health, and its booking is gone.
func TestWithdraw(t *testing.T) {
	now := time.Unix(1000, 0)
	r := connected(t, Options{Ejection: outlier.Config{Failures: 1}, Now: func() time.Time { return now }}, members(2)...)
	for range 5 {
		q := &Request{Answer: AnswerWhole}
		b := pick(t, r, q)
		rep := b.Decision.Replica
		b.Withdraw(q)
		b.Withdraw(q)
		require.Zero(t, rep.Ongoing())
		state, _ := r.Outliers().State(rep.Outlier())
		require.Equal(t, outlier.Healthy, state)
	}
	new(Booking).Withdraw(new(Request))
}
