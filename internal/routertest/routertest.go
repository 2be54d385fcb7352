// Package routertest has what the tests of policies and of the Router share beyond package policytest: a clock,
// requests, and questions to a Router.
package routertest

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

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

// Request returns the i-th of a series of requests that differ in their keys.
// Of every four one has all keys, one a session, one a prompt and one none.
func Request(i int) *policy.Request {
	q := new(policy.Request)
	if i%2 == 0 {
		q = Prompt(Tokens(i%3, 600), Tokens(3+i, 600)) // the first half is shared by many
	}
	if i%4 == 0 {
		q.ID = fmt.Sprintf("req-%d", i)
	}
	if i%4 < 2 {
		q.Session = fmt.Sprintf("sess_%04d", i)
	}
	return q
}

// Tokens returns n token ids; those of different seeds share nothing.
func Tokens(seed, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(seed*1_000_003 + i)
	}
	return out
}

// Prompt returns a request whose prompt is these tokens, one part after the other.
func Prompt(parts ...[]uint32) *policy.Request {
	q := new(policy.Request)
	q.SetPrompt(policy.Prompt{Tokens: slices.Concat(parts...)})
	return q
}

// BenchmarkSizes are the sizes of fleet that benchmarks of policies measure.
var BenchmarkSizes = []int{8, 64, 512, 1000, 10000}

// A Clock is a clock that moves only by its methods. Safe for concurrent use.
type Clock struct{ nanoseconds atomic.Int64 } // since 1970

// NewClock returns a clock that stands at the first moment of 2030, UTC.
func NewClock() *Clock {
	c := new(Clock)
	c.nanoseconds.Store(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano())
	return c
}

// Now returns the clock's time.
func (c *Clock) Now() time.Time { return time.Unix(0, c.nanoseconds.Load()).UTC() }

// Advance moves the clock forward.
func (c *Clock) Advance(d time.Duration) { c.nanoseconds.Add(int64(d)) }

// Seeded returns a source of randomness that is the same in every run.
func Seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed)) }
