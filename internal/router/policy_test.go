package router

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

// watching is a policy with every optional part.
type watching struct {
	uses      policy.Uses
	prepare   func(context.Context, *policy.Request, policy.View) error
	changed   func(policy.FleetChange)
	routed    func(*policy.Request, policy.Decision)
	completed func(*policy.Request, policy.Decision, policy.Outcome)
	closes    int
}

func (p *watching) policy() policy.Policy {
	return policy.Policy{
		Uses: p.uses, Prepare: p.prepare, Choose: firstFree,
		Observer: policy.Observer{FleetChanged: p.changed, Routed: p.routed, Completed: p.completed},
		Close: func() error {
			p.closes++
			return errors.New("stuck")
		},
	}
}

func TestUses(t *testing.T) {
	require.Zero(t, connected(t, Options{}).Uses())
	for uses, want := range map[policy.Uses]bool{
		0: false, policy.UsesSession: false, policy.UsesPrompt: false,
		policy.CallsOut: true, policy.UsesPrompt | policy.CallsOut: true,
	} {
		prepared, deadline := false, false
		r := connected(t, Options{PrepareTimeout: time.Hour, Policy: policy.Policy{
			Uses: uses, Choose: firstFree,
			Prepare: func(ctx context.Context, q *policy.Request, v policy.View) error {
				end, ok := ctx.Deadline()
				prepared, deadline = true, ok && time.Until(end) > time.Minute
				return nil
			},
		}}, members(1)...)
		require.Equal(t, uses, r.Uses())
		pick(t, r, new(policy.Request))
		require.True(t, prepared)
		require.Equal(t, want, deadline, "%b", uses)
	}
}

func TestPrepareTimeout(t *testing.T) {
	r := connected(t, Options{PrepareTimeout: time.Millisecond, Policy: policy.Policy{
		Uses: policy.CallsOut, Choose: firstFree,
		Prepare: func(ctx context.Context, q *policy.Request, v policy.View) error {
			<-ctx.Done()
			return ctx.Err()
		},
	}}, members(1)...)
	pick(t, r, new(policy.Request))
	require.EqualValues(t, 1, r.Counts.PrepareErrors.Load(), "counted; the request is still served")
}

func TestPreparedOncePerFleetAndRouter(t *testing.T) {
	var prepared []any
	var during func()
	pol := func(name string) policy.Policy {
		return policy.Policy{Uses: policy.UsesPrompt, Choose: firstFree, Prepare: func(_ context.Context, q *policy.Request, v policy.View) error {
			require.True(t, v.Available(q, v.Replicas()[0]), "a model that no replica declares filters nothing here either")
			prepared = append(prepared, q.Prepared)
			q.Prepared = name
			if during != nil {
				during()
			}
			return nil
		}, Observer: policy.Observer{Routed: func(*policy.Request, policy.Decision) {}}}
	}
	r := connected(t, Options{Policy: pol("one")}, member("a", models("m")))
	q := &policy.Request{Model: "unknown"}
	r.Prepare(t.Context(), q)
	pick(t, r, q)
	NextAttempt(q, nil)
	pick(t, r, q)
	require.Equal(t, []any{nil}, prepared)
	r.Fleet.SetConnected("a", false)
	r.Fleet.SetConnected("a", true)
	pick(t, r, q)
	require.Len(t, prepared, 1)
	r.Fleet.Set([]Member{member("a", models("m")), member("b")})
	pick(t, r, q)
	require.Equal(t, []any{nil, "one"}, prepared)

	other := connected(t, Options{Policy: pol("other")}, member("a", models("m")))
	other.Fleet.Set([]Member{member("a", models("m", "n"))})
	require.Equal(t, r.View().Epoch(), other.View().Epoch())
	pick(t, other, q)
	require.Equal(t, []any{nil, "one", nil}, prepared, "the state of another Router's policy is cleared")

	prepared = nil
	n := 0
	during = func() { // a fleet that changes all the time does not delay a request
		n++
		r.Fleet.Set(members(1, room(n+1), models("m")))
		connectAll(r)
	}
	pick(t, r, &policy.Request{})
	require.Len(t, prepared, 2)

	prepared, during = nil, nil
	pick(t, r, &policy.Request{Pin: "r0"})
	require.Len(t, prepared, 1, "the policy observes routes")
}

// A fleet that changes after a request was to be prepared, and before it takes the lock, finds the request
// prepared.
func TestFleetThatChangesBeforeTheLock(t *testing.T) {
	r, err := NewRouter(Options{Policy: policy.Policy{
		Prepare: func(_ context.Context, q *policy.Request, v policy.View) error {
			q.Prepared = v.Epoch()
			return nil
		},
		Choose: func(q *policy.Request, v policy.View) policy.Decision {
			require.Equal(t, v.Epoch(), q.Prepared)
			return firstFree(q, v)
		},
	}})
	require.NoError(t, err)
	q, b := new(policy.Request), new(Reservation)
	r.Prepare(t.Context(), q)
	require.Nil(t, q.Prepared)
	r.Fleet.Set(members(1))
	r.Fleet.Connect()
	_, err = r.reserve(t.Context(), q, b, new(How))
	require.NoError(t, err)
	require.Equal(t, "r0", b.Decision.Replica.ID)
}

func TestObservers(t *testing.T) {
	var r *Router
	var routed, completed []policy.Decision
	pol := &watching{
		routed: func(_ *policy.Request, d policy.Decision) {
			require.Equal(t, 1, r.View().ByID("r0").Ongoing())
			require.Zero(t, r.Queued(), "takes the lock: it is free")
			routed = append(routed, d)
		},
		completed: func(_ *policy.Request, d policy.Decision, o policy.Outcome) {
			require.Zero(t, r.Queued())
			completed = append(completed, d)
		},
	}
	r = connected(t, Options{Policy: pol.policy(), MaxOngoing: 1}, members(1)...)
	require.True(t, r.Observes())
	require.False(t, connected(t, Options{}).Observes())

	q, b := new(policy.Request), new(Reservation)
	require.NoError(t, r.Reserve(t.Context(), q, b, How{NoWait: true}))
	require.Equal(t, []policy.Decision{b.Decision}, routed)
	require.Error(t, r.Reserve(t.Context(), new(policy.Request), new(Reservation), How{NoWait: true}))
	require.Len(t, routed, 1)
	b.Release()
	require.NoError(t, r.Reserve(t.Context(), q, b, How{}))
	require.Len(t, routed, 2)
	b.Release()
	query := new(Reservation)
	require.NoError(t, r.Reserve(t.Context(), new(policy.Request), query, How{Query: true}))
	require.Equal(t, 1, r.View().ByID("r0").Ongoing())
	require.Len(t, routed, 2, "a query is no route")
	query.Release()
	r.Complete(q, b.Decision, policy.Outcome{Usage: policy.NoUsage})
	r.Complete(q, policy.Decision{}, policy.Outcome{})
	require.Equal(t, []policy.Decision{b.Decision}, completed)

	require.ErrorContains(t, r.Close(), "stuck")
	require.NoError(t, r.Close())
	require.Equal(t, 1, pol.closes)
	r.Complete(q, b.Decision, policy.Outcome{})
	require.Len(t, completed, 1, "a closed policy is not called")
}
