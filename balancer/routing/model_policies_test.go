package routing

import (
	"context"
	"errors"
	"slices"
)

func anyAtRandom(q *Request, v *View) Decision {
	all := v.Connected()
	from := v.IntN(len(all))
	for i := range all {
		if r := all[(from+i)%len(all)]; v.Available(q, r) {
			return To(r, "random")
		}
	}
	return Wait()
}

func leastOfTwo(q *Request, v *View) Decision {
	if r := v.LeastOfTwo(q); r != nil {
		return To(r, ReasonLeastOfTwo)
	}
	return Wait()
}

// fixedOrder walks from a place that the session fixes and takes the first of
// three that are connected; when these are full it waits for them and no others.
func fixedOrder(q *Request, v *View) Decision {
	return inOrder(q, v, v.Replicas(), len(q.Session))
}

func inOrder(q *Request, v *View, all []*Replica, from int) Decision {
	var want []*Replica
	for i := range all {
		r := all[(from+i)%len(all)]
		if !r.Connected() || r.Draining {
			continue
		}
		if v.Available(q, r) {
			return To(r, ReasonRing)
		}
		if want = append(want, r); len(want) == 3 {
			break
		}
	}
	return Wait(want...)
}

// capricious changes its mind each time about whom it would take.
func capricious(q *Request, v *View) Decision {
	return inOrder(q, v, v.Replicas(), v.IntN(len(v.Replicas())))
}

// remembering chooses among the replicas of the View that Prepare saw.
type remembering struct{}

func (remembering) Prepare(_ context.Context, q *Request, v *View) error {
	q.Prepared = v.Replicas()
	if q.ID == "bad" {
		return errors.New("bad")
	}
	return nil
}

func (remembering) Choose(q *Request, v *View) Decision {
	return inOrder(q, v, q.Prepared.([]*Replica), len(q.Session))
}

// hostile breaks every rule that a policy may break.
type hostile struct{ seen []*Replica }

func (*hostile) Uses() Uses { return 0 }

func (*hostile) Prepare(context.Context, *Request, *View) error { return nil }

func (h *hostile) Choose(q *Request, v *View) Decision {
	for _, r := range v.Replicas() {
		if !slices.Contains(h.seen, r) && len(h.seen) < 300 {
			h.seen = append(h.seen, r) // most of them will have left
		}
	}
	one := func() *Replica { return h.seen[v.IntN(len(h.seen))] }
	switch v.IntN(8) {
	case 0:
		return Wait()
	case 1:
		return Wait(one(), one(), one())
	case 2:
		return Wait(nil, one())
	case 3:
		return Wait([]*Replica{}...)
	case 4:
		return To(&Replica{}, "made up")
	case 5:
		return Decision{Replica: one(), WaitFor: []*Replica{one()}, MatchedTokens: -v.IntN(1 << 40), rank: int32(v.IntN(9))}
	default:
		return To(one(), "whatever")
	}
}
