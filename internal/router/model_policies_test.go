package router

import (
	"context"
	"errors"
	"slices"

	"github.com/warmpath/warmpath/balancer/policy"
)

func anyAtRandom(q *policy.Request, v policy.View) policy.Decision {
	all := v.Connected()
	from := v.IntN(len(all))
	for i := range all {
		if r := all[(from+i)%len(all)]; v.Available(q, r) {
			return policy.To(r, "random")
		}
	}
	return policy.Wait()
}

func leastOfTwo(q *policy.Request, v policy.View) policy.Decision {
	if r := v.LeastOfTwo(q); r != nil {
		return policy.To(r, policy.ReasonLeastOfTwo)
	}
	return policy.Wait()
}

// fixedOrder walks from a position that the session fixes and takes the first of three that are connected. When
// these are full it waits for them and no others.
func fixedOrder(q *policy.Request, v policy.View) policy.Decision {
	return inOrder(q, v, v.Replicas(), len(q.Session))
}

func inOrder(q *policy.Request, v policy.View, all []*policy.Replica, from int) policy.Decision {
	var want []*policy.Replica
	for i := range all {
		r := all[(from+i)%len(all)]
		if !r.Connected() || r.Draining {
			continue
		}
		if v.Available(q, r) {
			return policy.To(r, policy.ReasonRing)
		}
		if want = append(want, r); len(want) == 3 {
			break
		}
	}
	return policy.Wait(want...)
}

// capricious draws another set of acceptable replicas each time.
func capricious(q *policy.Request, v policy.View) policy.Decision {
	return inOrder(q, v, v.Replicas(), v.IntN(len(v.Replicas())))
}

// remembering chooses among the replicas of the View that Prepare saw.
func remembering() policy.Policy {
	return policy.Policy{
		Uses:    policy.UsesSession | policy.UsesPrompt | policy.CallsOut | policy.UsesLoad,
		Prepare: remember,
		Choose: func(q *policy.Request, v policy.View) policy.Decision {
			return inOrder(q, v, q.Prepared.([]*policy.Replica), len(q.Session))
		},
	}
}

func remember(_ context.Context, q *policy.Request, v policy.View) error {
	q.Prepared = v.Replicas()
	if q.ID == "bad" {
		return errors.New("bad")
	}
	return nil
}

// hostile breaks every rule that a policy may break.
type hostile struct{ seen []*policy.Replica }

func newHostile() policy.Policy { return policy.Policy{Name: "hostile", Choose: new(hostile).choose} }

func (h *hostile) choose(q *policy.Request, v policy.View) policy.Decision {
	for _, r := range v.Replicas() {
		if !slices.Contains(h.seen, r) && len(h.seen) < 300 {
			h.seen = append(h.seen, r) // most of them will have left the fleet
		}
	}
	one := func() *policy.Replica { return h.seen[v.IntN(len(h.seen))] }
	switch v.IntN(8) {
	case 0:
		return policy.Wait()
	case 1:
		return policy.Wait(one(), one(), one())
	case 2:
		return policy.Wait(nil, one())
	case 3:
		return policy.Wait([]*policy.Replica{}...)
	case 4:
		return policy.To(&policy.Replica{}, "made up")
	case 5:
		d := policy.Decision{Replica: one(), WaitFor: []*policy.Replica{one()}, MatchedTokens: -v.IntN(1 << 40)}
		d.SetRank(v.IntN(9) - 1)
		return d
	default:
		return policy.To(one(), "whatever")
	}
}
