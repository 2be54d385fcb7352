package routing

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// watching is a policy with every optional part.
type watching struct {
	uses      Uses
	prepare   func(context.Context, *Request, *View) error
	changed   func(FleetChange)
	routed    func(*Request, Decision)
	completed func(*Request, Decision, Outcome)
	closes    int
}

func (p *watching) Uses() Uses { return p.uses }

func (p *watching) Prepare(ctx context.Context, q *Request, v *View) error {
	return p.prepare(ctx, q, v)
}

func (p *watching) Choose(q *Request, v *View) Decision { return firstFree(q, v) }

func (p *watching) FleetChanged(c FleetChange) {
	if p.changed != nil {
		p.changed(c)
	}
}

func (p *watching) Routed(q *Request, d Decision) {
	if p.routed != nil {
		p.routed(q, d)
	}
}

func (p *watching) Completed(q *Request, d Decision, o Outcome) { p.completed(q, d, o) }

func (p *watching) Close() error {
	p.closes++
	return errors.New("stuck")
}

func TestUses(t *testing.T) {
	require.Equal(t, UsesSession|UsesPrompt|CallsOut|UsesLoad, connected(t, Options{Policy: remembering{}}).Uses())
	for uses, c := range map[Uses]struct{ prepared, deadline bool }{
		0: {}, UsesSession: {}, UsesPrompt: {true, false},
		CallsOut: {true, true}, UsesPrompt | CallsOut: {true, true},
	} {
		prepared, deadline := false, false
		r := connected(t, Options{PrepareTimeout: time.Hour, Policy: &watching{
			uses: uses,
			prepare: func(ctx context.Context, q *Request, v *View) error {
				end, ok := ctx.Deadline()
				prepared, deadline = true, ok && time.Until(end) > time.Minute
				return nil
			},
		}}, members(1)...)
		require.Equal(t, uses, r.Uses())
		pick(t, r, new(Request))
		require.Equal(t, c, struct{ prepared, deadline bool }{prepared, deadline}, "%b", uses)
	}
}

func TestPrepareTimeout(t *testing.T) {
	r := connected(t, Options{PrepareTimeout: time.Millisecond, Policy: &watching{
		uses: CallsOut,
		prepare: func(ctx context.Context, q *Request, v *View) error {
			<-ctx.Done()
			return ctx.Err()
		},
	}}, members(1)...)
	pick(t, r, new(Request))
	require.EqualValues(t, 1, r.PrepareErrors(), "counted; the request is served all the same")
}

func TestPreparedOncePerFleetAndRouter(t *testing.T) {
	var prepared []any
	var during func()
	policy := func(name string) *watching {
		return &watching{uses: UsesPrompt, prepare: func(_ context.Context, q *Request, v *View) error {
			require.True(t, v.Available(q, v.Replicas()[0]), "a model that nobody declares filters nothing here either")
			prepared = append(prepared, q.Prepared)
			q.Prepared = name
			if during != nil {
				during()
			}
			return nil
		}}
	}
	r := connected(t, Options{Policy: policy("one")}, member("a", models("m")))
	q := &Request{Model: "unknown"}
	r.Prepare(t.Context(), q)
	pick(t, r, q)
	q.NextAttempt(nil)
	pick(t, r, q)
	require.Equal(t, []any{nil}, prepared)
	r.SetConnected("a", false)
	r.SetConnected("a", true)
	pick(t, r, q)
	require.Len(t, prepared, 1)
	r.SetFleet([]Member{member("a", models("m")), member("b")})
	pick(t, r, q)
	require.Equal(t, []any{nil, "one"}, prepared)

	other := connected(t, Options{Policy: policy("other")}, member("a", models("m")))
	other.SetFleet([]Member{member("a", models("m", "n"))})
	require.Equal(t, r.View().Epoch(), other.View().Epoch())
	pick(t, other, q)
	require.Equal(t, []any{nil, "one", nil}, prepared, "what another Router's policy left is gone")

	prepared = nil
	n := 0
	during = func() { // a fleet that changes all the time does not hold a request up
		n++
		r.SetFleet(members(1, room(n), models("m")))
		connectAll(r)
	}
	pick(t, r, &Request{})
	require.Len(t, prepared, 3)

	prepared, during = nil, nil
	pick(t, r, &Request{Pin: "r0"})
	require.Len(t, prepared, 1, "the policy observes routes")
}

func TestObservers(t *testing.T) {
	var r *Router
	var routed, completed []Decision
	policy := &watching{
		routed: func(_ *Request, d Decision) {
			require.Equal(t, 1, r.View().ByID("r0").Ongoing())
			require.Zero(t, r.Queued(), "takes the lock: it is free")
			routed = append(routed, d)
		},
		completed: func(_ *Request, d Decision, o Outcome) {
			require.Zero(t, r.Queued())
			completed = append(completed, d)
		},
	}
	r = connected(t, Options{Policy: policy, MaxOngoing: 1}, members(1)...)
	require.True(t, r.Observes())
	require.False(t, connected(t, Options{}).Observes())

	q, b := new(Request), new(Booking)
	require.NoError(t, r.Pick(t.Context(), q, b))
	require.Equal(t, []Decision{b.Decision}, routed)
	require.Error(t, r.Pick(t.Context(), new(Request), new(Booking)))
	require.Len(t, routed, 1)
	b.Release()
	require.NoError(t, r.Acquire(t.Context(), q, b))
	require.Len(t, routed, 2)
	b.Release()
	asked := new(Booking)
	require.NoError(t, r.Query(t.Context(), new(Request), asked))
	require.Equal(t, 1, r.View().ByID("r0").Ongoing())
	require.Len(t, routed, 2, "a question is no route")
	asked.Release()
	r.Complete(q, b.Decision, Outcome{Usage: NoUsage})
	r.Complete(q, Decision{}, Outcome{})
	require.Equal(t, []Decision{b.Decision}, completed)

	require.ErrorContains(t, r.Close(), "stuck")
	require.NoError(t, r.Close())
	require.Equal(t, 1, policy.closes)
	r.Complete(q, b.Decision, Outcome{})
	require.Len(t, completed, 1, "a policy that is closed is left alone")
}
