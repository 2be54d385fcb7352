package router

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

// twoQuick is power of two choices with and without the lock.
func twoQuick() policy.Policy {
	return policy.Policy{
		ChooseQuick: func(_ *policy.Request, v policy.View) (*policy.Replica, policy.Reason) {
			return v.QuickLeastOfTwo(), policy.ReasonLeastOfTwo
		},
		Choose: func(q *policy.Request, v policy.View) policy.Decision {
			if r := v.LeastOfTwo(q); r != nil {
				return policy.To(r, policy.ReasonLeastOfTwo)
			}
			return policy.Wait()
		},
	}
}

func quickRouter(t testing.TB, n, most int) *Router {
	t.Helper()
	r, err := NewRouter(Options{Policy: twoQuick(), MaxOngoing: most})
	require.NoError(t, err)
	var members []Member
	for i := range n {
		members = append(members, Member{Attributes: policy.Attributes{ID: fmt.Sprint("r", i)}})
	}
	r.Fleet.Set(members)
	for _, m := range members {
		r.Fleet.SetConnected(m.ID, true)
	}
	return r
}

func TestQuickPicks(t *testing.T) {
	r := quickRouter(t, 4, 2)
	var q policy.Request
	var taken []*policy.Replica
	for {
		rep, why, ok := r.Quick().Pick(&q)
		if !ok {
			break
		}
		require.Equal(t, policy.ReasonLeastOfTwo, why)
		require.LessOrEqual(t, rep.Ongoing(), 2)
		taken = append(taken, rep)
	}
	require.NotEmpty(t, taken)
	var b Reservation
	for range 8 - len(taken) { // the lock finds the rest
		var more Reservation
		require.NoError(t, r.Reserve(context.Background(), &policy.Request{}, &more, How{NoWait: true}))
	}
	require.ErrorIs(t, r.Reserve(context.Background(), &policy.Request{}, &b, How{NoWait: true}), ErrFull)

	// A waiter is served by a quick release, and no quick pick overtakes it.
	done := make(chan error, 1)
	go func() { done <- r.Reserve(context.Background(), &policy.Request{}, &b, How{}) }()
	for r.Queued() == 0 {
		runtime.Gosched()
	}
	_, _, ok := r.Quick().Pick(&q)
	require.False(t, ok)
	r.Quick().Release(taken[0])
	require.NoError(t, <-done)
	require.Equal(t, taken[0].ID, b.Decision.Replica.ID)
}

func TestQuickPicksLeaveTheRestToTheLock(t *testing.T) {
	r := quickRouter(t, 4, 0)
	tried := new(policy.Request)
	NextAttempt(tried, r.View().ByID("r1"))
	for name, q := range map[string]*policy.Request{
		"pin":      {Pin: "r1"},
		"exclude":  {Exclude: []string{"r1"}},
		"model":    {Model: "m"},
		"adapter":  {Adapter: "a"},
		"attempts": tried,
	} {
		_, _, ok := r.Quick().Pick(q)
		require.False(t, ok, name)
	}
	require.NoError(t, r.Close())
	_, _, ok := r.Quick().Pick(&policy.Request{})
	require.False(t, ok, "closed")
	_, _, ok = quickRouter(t, 2, 0).Quick().Pick(&policy.Request{})
	require.False(t, ok, "two are no choice of two")
}

// Quick picks, waits, churn and the sum of the loads, all at once: bounds hold, every wait ends, and everything
// returns to zero.
func TestQuickPicksUnderChurn(t *testing.T) {
	const n, most = 5, 3
	r := quickRouter(t, n, most)
	var callers, churn sync.WaitGroup
	var stop atomic.Bool
	over := func(rep *policy.Replica) {
		if got := rep.Ongoing(); got > most {
			t.Errorf("%s has %d reservations", rep.ID, got)
		}
	}
	for range 8 {
		callers.Go(func() {
			for range 4000 {
				if rep, _, ok := r.Quick().Pick(&policy.Request{}); ok {
					over(rep)
					r.Quick().Release(rep)
					continue
				}
				var b Reservation
				switch err := r.Reserve(context.Background(), &policy.Request{}, &b, How{}); err {
				case nil:
					over(b.Decision.Replica)
					b.Release()
				case ErrNotConnected, ErrNoSuchReplica:
				default:
					t.Error(err)
				}
			}
		})
	}
	members := func(without int) (ms []Member) {
		for i := range n {
			if i != without {
				ms = append(ms, Member{Attributes: policy.Attributes{ID: fmt.Sprint("r", i)}})
			}
		}
		return ms
	}
	churn.Go(func() {
		for i := 0; !stop.Load(); i++ {
			r.Fleet.Set(members(i % (n + 1)))
			r.Fleet.SetConnected(fmt.Sprint("r", i%n), i%3 != 0)
			r.Fleet.SetConnected(fmt.Sprint("r", (i+1)%n), true)
		}
	})
	callers.Wait()
	stop.Store(true)
	churn.Wait()
	r.Fleet.Set(members(-1))
	for _, rep := range r.View().Replicas() {
		assert.Zero(t, rep.Ongoing(), rep.ID)
	}
	assert.Zero(t, r.Queued())
	assert.Empty(t, departed(r))
	for i := range n {
		r.Fleet.SetConnected(fmt.Sprint("r", i), true)
	}
	assert.Zero(t, meanLoad(r.View()))
}
