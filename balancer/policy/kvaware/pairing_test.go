package kvaware

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policy/poweroftwo"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
)

// The work on the ranks is zero when nothing is under way, and never negative, however the kill switch, the
// percentage, the incarnations of replicas and the requests change meanwhile.
func TestWorkIsRemovedWhereItWasAdded(t *testing.T) {
	plain, err := poweroftwo.New(poweroftwo.Config{})
	require.NoError(t, err)
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		p := newPolicy(t, Config{}.WithDefaults())
		fleet := policytest.Fleet(4)
		for i := range fleet {
			fleet[i].Ranks, fleet[i].Instance = 4, "1"
		}
		r := policytest.NewRouter(t, p.policy(), fleet, func(o *router.Options) { o.Plain = plain })
		type call struct {
			q *policy.Request
			b *router.Reservation
		}
		var calls []call
		end := func(c call) {
			if rnd.IntN(4) == 0 {
				c.b.Withdraw(c.q)
				return
			}
			c.b.Release()
			if rnd.IntN(8) > 0 { // else one whose end is never reported
				r.Complete(c.q, c.b.Decision, policy.Outcome{Sent: true, Usage: policy.NoUsage})
			}
		}
		check := func() (all int64) {
			for _, rep := range r.View().Replicas() {
				for rank := range rep.Ranks {
					work := p.caches.Member(rep).Work(rank)
					require.GreaterOrEqual(t, work, int64(0), "seed %d", seed)
					all += work
				}
			}
			return all
		}
		for i := range 300 {
			switch rnd.IntN(6) {
			case 0:
				require.NoError(t, r.Rollout.Set([]*policy.Limit{nil, new(policy.Limit(50)), new(policy.Limit(0)), new(policy.Limit(policy.Off))}[rnd.IntN(4)]))
			case 1:
				if rnd.IntN(4) == 0 {
					fleet[rnd.IntN(4)].Instance = fmt.Sprint(i)
					policytest.SetFleet(r, fleet)
				}
			case 2, 3:
				if len(calls) > 0 {
					at := rnd.IntN(len(calls))
					end(calls[at])
					calls = append(calls[:at], calls[at+1:]...)
				}
			default:
				q := &policy.Request{Session: fmt.Sprint("s", i)}
				if rnd.IntN(2) == 0 {
					q = ask(tokens(rnd.IntN(5), 200+rnd.IntN(400)))
				}
				c := call{q, policytest.Pick(t, r, q)}
				calls = append(calls, c)
			}
			check()
		}
		for _, c := range calls {
			end(c)
		}
		// A request without a reported end is removed at the next request that is alone.
		require.NoError(t, r.Rollout.Set(nil))
		for _, m := range fleet {
			q := &policy.Request{Session: "s"}
			for _, other := range fleet {
				if other.ID != m.ID {
					q.Exclude = append(q.Exclude, other.ID)
				}
			}
			c := call{q, policytest.Pick(t, r, q)}
			c.b.Withdraw(c.q)
		}
		require.Zero(t, check(), "seed %d", seed)
	}
}
