// Package routertest has what the tests of policies and of the Router share beyond package policytest: a clock,
// requests, and questions to a Router.
package routertest

import (
	"cmp"
	"context"
	"slices"
	"testing"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/rendezvous"
	"github.com/warmpath/warmpath/internal/router"
)

// Choose asks the policy itself, as the Router would but without its
// corrections, and reserves nothing. The Router must not be in use elsewhere.
func Choose(t testing.TB, r *router.Router, q *policy.Request) policy.Decision {
	t.Helper()
	r.Prepare(context.Background(), q)
	return r.Policy().Choose(q, r.View())
}

// Pick picks and reserves. The test fails where the Router has an error.
func Pick(t testing.TB, r *router.Router, q *policy.Request) *router.Reservation {
	t.Helper()
	b := new(router.Reservation)
	if err := r.Reserve(context.Background(), q, b, router.How{NoWait: true}); err != nil {
		t.Fatalf("routertest: Reserve: %v", err)
	}
	return b
}

// Decide picks, releases at once, and returns what was decided.
func Decide(t testing.TB, r *router.Router, q *policy.Request) policy.Decision {
	t.Helper()
	b := Pick(t, r, q)
	b.Release()
	return b.Decision
}

// Ongoing returns how many reservations each replica of the fleet has, by id.
func Ongoing(r *router.Router) map[string]int {
	n := make(map[string]int)
	for _, rep := range r.View().Replicas() {
		n[rep.ID] = rep.Ongoing()
	}
	return n
}

// Order returns the ids of the replicas in the rendezvous order of a key, as package rendezvous defines it.
func Order(key uint64, replicas []*policy.Replica) []string {
	var s rendezvous.Scorer
	s.SetKey(key)
	scores := make(map[*policy.Replica]uint64)
	for _, r := range replicas {
		scores[r] = s.Score(r)
	}
	sorted := slices.SortedFunc(slices.Values(replicas), func(a, b *policy.Replica) int {
		return cmp.Or(cmp.Compare(scores[b], scores[a]), cmp.Compare(a.ID, b.ID))
	})
	ids := make([]string, len(sorted))
	for i, r := range sorted {
		ids[i] = r.ID
	}
	return ids
}

// Acquire reserves, waiting in the queue, in a goroutine of its own. The channel gives the reservation once
// there is one, and is closed; it gives nothing where the Router has an error,
// which fails the test. In a [testing/synctest] bubble,
//
//	got := routertest.Acquire(t, r, q)
//	synctest.Wait()
//
// returns when the request has its reservation or stands in the queue.
func Acquire(t testing.TB, r *router.Router, q *policy.Request) <-chan *router.Reservation {
	got := make(chan *router.Reservation, 1)
	go func() {
		defer close(got)
		b := new(router.Reservation)
		if err := r.Reserve(t.Context(), q, b, router.How{}); err != nil {
			t.Errorf("routertest: Reserve: %v", err)
			return
		}
		got <- b
	}()
	return got
}
