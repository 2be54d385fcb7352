package router

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
)

// Ejection is a preference: where no other pair serves a request, one with an ejected replica does.
func TestPairOnlyOfEjectedReplicas(t *testing.T) {
	for _, ejected := range []string{"p", "d"} {
		w := newHarness(t, 0)
		o := w.opts
		o.Policy = loading(leastLoaded)
		w.Router = split(t, o, member("p", prefills), member("d", decodes))
		for w.condition(ejected) != outlier.Ejected {
			w.fail(ejected)
			w.pass(round)
		}
		pre, b := new(Reservation), new(Reservation)
		require.NoError(t, w.Reserve(t.Context(), ask(10), b, How{NoWait: true, Legs: &Legs{Prefill: pre, Only: true}}))
		require.Equal(t, []string{"p", "d"}, []string{pre.Decision.Replica.ID, b.Decision.Replica.ID})
		pre.Release()
		b.Release()
		idle(t, w.Router)
	}
}

// Where all decode replicas are ejected or in slow start, a request that they would serve whole is split as in
// other cases.
func TestLegsOfReplicasThatArePassedOver(t *testing.T) {
	for _, condition := range []outlier.State{outlier.SlowStart, outlier.Ejected} {
		w := newHarness(t, 0)
		o := w.opts
		o.Policy = loading(leastLoaded)
		w.Router = split(t, o, member("p", prefills), member("p2", prefills))
		w.pass(time.Minute)
		w.Fleet.Set([]Member{member("p", prefills), member("p2", prefills), member("d", decodes)})
		connectAll(w.Router)
		for w.condition("d") != condition {
			w.fail("d")
			w.pass(round)
		}
		decoding(t, w.Router, 20)
		w.pass(round)
		p, d, pre, b := legsAt(t, w.Router, ask(10_000))
		require.Contains(t, p, "p", condition)
		require.Equal(t, "d", d)
		pre.Release()
		b.Release()
	}
}

// A request may go from one Router to the next, whose policy is another.
func TestLegsOfTheNextRouter(t *testing.T) {
	var found, ended []string
	named := func(name string) policy.Policy {
		p := loading(leastLoaded)
		p.Prepare = func(_ context.Context, q *policy.Request, _ policy.View) error {
			if was, ok := q.Prepared.(string); ok && was != name {
				found = append(found, name+" finds the state of "+was)
			}
			q.Prepared = name
			return nil
		}
		p.Observer.Completed = func(_ *policy.Request, d policy.Decision, _ policy.Outcome) {
			ended = append(ended, name+" "+d.Replica.ID)
		}
		return p
	}
	q := ask(10_000)
	for _, name := range []string{"first", "second"} {
		r := split(t, Options{Policy: named(name)}, member("p", prefills), member("d", decodes))
		decoding(t, r, 20)
		p, _, pre, b := legsAt(t, r, q)
		require.Equal(t, "p", p)
		pre.Release()
		r.Complete(q, pre.Decision, policy.Outcome{Sent: true})
		b.Release()
		NextAttempt(q, nil)
	}
	require.Empty(t, found)
	require.Equal(t, []string{"first p", "second p"}, ended)
}

// The replica that prefilled a request does not decode it, also where the next Router decides.
func TestDecodeLegInTheNextRouter(t *testing.T) {
	fleet := []Member{member("p", prefills), member("b"), member("d", decodes)}
	from := split(t, Options{}, fleet...).View().ByID("b")
	next := split(t, Options{}, fleet...)
	for range 5 {
		pick(t, next, &policy.Request{Pin: "d"})
	}
	b := new(Reservation)
	require.NoError(t, next.Reserve(t.Context(), ask(10), b, How{NoWait: true, Legs: &Legs{From: from}}))
	require.Equal(t, "d", b.Decision.Replica.ID)
}
