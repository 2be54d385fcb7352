package router

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

// What is reserved in Routers that were replaced counts in the one that has replaced them, and its end makes room there.
func TestInheritedReservationsCount(t *testing.T) {
	fleet := []Member{member("a", room(1))}
	first := connected(t, Options{}, fleet...)
	held := pick(t, first, new(policy.Request))
	last := first
	for range 3 {
		next, err := NewRouter(Options{Policy: first.Policy()})
		require.NoError(t, err)
		next.Inherit(last)
		next.Fleet.Set(fleet)
		connectAll(next)
		require.NoError(t, last.Close())
		last = next
	}
	require.True(t, last.Inherits(first))
	require.Equal(t, 1, last.View().ByID("a").Ongoing())
	require.ErrorIs(t, last.Reserve(t.Context(), new(policy.Request), new(Reservation), How{NoWait: true}), ErrFull)

	w := enqueue(t, last, new(policy.Request))
	held.Release()
	require.Equal(t, "a", servedBy(t, w))
	require.Equal(t, 1, last.View().ByID("a").Ongoing())
	w.b.Release()
	require.Zero(t, last.View().ByID("a").Ongoing())
	require.Empty(t, departed(last))
}

// A refusal of what was reserved before marks the replica in the Router in force.
func TestInheritedReservationIsRefused(t *testing.T) {
	c := newManual()
	fleet := []Member{member("a"), member("b")}
	first := connected(t, c.options(Options{}), fleet...)
	held := pick(t, first, &policy.Request{Pin: "a"})
	next, err := NewRouter(c.options(Options{Policy: first.Policy()}))
	require.NoError(t, err)
	next.Inherit(first)
	next.Fleet.Set(fleet)
	connectAll(next)
	held.Refused(fullReport)
	require.True(t, next.View().ByID("a").Full())
	require.Zero(t, next.View().ByID("a").Ongoing())
	require.Equal(t, "b", pick(t, next, new(policy.Request)).Decision.Replica.ID)
}
