package router

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

// busy reads all that a policy may read without the lock, and observes.
type busy struct{ routed, completed, inside, closed atomic.Int64 }

func (p *busy) prepare(_ context.Context, q *policy.Request, v policy.View) error {
	p.inside.Add(1)
	defer p.inside.Add(-1)
	for _, r := range v.Connected() {
		_, _ = v.Available(q, r), v.Load(r)
		_, _ = r.QueuedTokens(), r.Capacity()
	}
	q.Prepared = meanLoad(v)
	return nil
}

func (p *busy) policy() policy.Policy {
	return policy.Policy{
		Uses:    policy.UsesSession | policy.UsesPrompt | policy.CallsOut | policy.UsesLoad,
		Prepare: p.prepare,
		Choose:  leastOfTwo,
		Observer: policy.Observer{
			Routed:       func(*policy.Request, policy.Decision) { p.routed.Add(1) },
			Completed:    func(*policy.Request, policy.Decision, policy.Outcome) { p.completed.Add(1) },
			FleetChanged: func(policy.FleetChange) {},
		},
		Close: p.close,
	}
}

func (p *busy) close() error {
	p.closed.Add(p.inside.Load() + 1)
	return nil
}

func TestManyCallersAndChurn(t *testing.T) {
	const callers, calls, most = 64, 150, 3
	pol := new(busy)
	r := connected(t, Options{Policy: pol.policy(), MaxOngoing: most}, members(6)...)
	var ongoing, reserved atomic.Int64
	var callersDone, churnDone sync.WaitGroup
	stop := make(chan struct{})
	churnDone.Go(func() {
		rnd := rand.New(rand.NewPCG(3, 4))
		for {
			select {
			case <-stop:
				return
			default:
			}
			switch rnd.IntN(4) {
			case 0:
				ms := members(6)
				r.Fleet.Set(ms[:4+rnd.IntN(3)])
				connectAll(r)
			case 1:
				ms := members(6, room(1+rnd.IntN(most)), func(m *Member) { m.Weight = float64(1 + rnd.IntN(3)) })
				r.Fleet.Set(ms)
				connectAll(r)
			default:
				r.Fleet.SetConnected(members(6)[rnd.IntN(6)].ID, rnd.IntN(3) > 0)
			}
		}
	})
	for i := range callers {
		callersDone.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 9))
			for range calls {
				ctx, cancel := context.WithCancel(t.Context())
				if rnd.IntN(3) == 0 {
					ctx, cancel = context.WithTimeout(t.Context(), time.Duration(rnd.IntN(200))*time.Microsecond)
				}
				q, b := &policy.Request{PromptTokens: rnd.IntN(100)}, new(Reservation)
				err := r.Reserve(ctx, q, b, How{})
				var we *WaitError
				switch {
				case err == nil:
					reserved.Add(1)
					assert.LessOrEqual(t, ongoing.Add(1), int64(8*most))
					var twice sync.WaitGroup
					twice.Go(b.PrefillDone)
					ongoing.Add(-1)
					twice.Go(b.Release)
					b.Release()
					twice.Wait()
					r.Complete(q, b.Decision, policy.Outcome{})
				case errors.Is(err, ErrNotConnected), errors.Is(err, ErrNoSuchReplica), errors.As(err, &we):
					assert.False(t, b.Held())
				default:
					assert.NoError(t, err)
				}
				cancel()
			}
		})
	}
	callersDone.Wait()
	close(stop)
	churnDone.Wait()
	r.Fleet.Set(members(6))
	for _, rep := range r.View().Replicas() {
		assert.Zero(t, rep.Ongoing())
		assert.Zero(t, rep.QueuedTokens())
	}
	assert.Zero(t, r.Queued())
	assert.Empty(t, departed(r))
	assert.Positive(t, reserved.Load())
	assert.Equal(t, reserved.Load(), pol.routed.Load())
	assert.Equal(t, reserved.Load(), pol.completed.Load())
	require.NoError(t, r.Close())
}

// Whatever ends a reservation, and however often, its load is given back once, and every request in the queue is served.
func TestEveryReleaseServesTheQueue(t *testing.T) {
	const callers, calls, most = 32, 100, 2
	fleet := []Member{
		member("a", room(1)), member("b", room(most)), member("p", room(1), prefills), member("d", room(1), decodes),
	}
	r := split(t, Options{Policy: choosing(wants)}, fleet...)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 5))
			for range calls {
				q := &policy.Request{PromptTokens: rnd.IntN(9), Priority: rnd.IntN(3) - 1}
				b, prefill, how := new(Reservation), new(Reservation), How{}
				switch rnd.IntN(4) {
				case 0:
					q.Session = "a"
				case 1:
					q.Pin = "b"
				case 2:
					how.Legs = &Legs{Prefill: prefill, Only: rnd.IntN(2) == 0}
				}
				if !assert.NoError(t, r.Reserve(t.Context(), q, b, how)) {
					return
				}
				assert.LessOrEqual(t, b.Decision.Replica.Ongoing(), most)
				var ends sync.WaitGroup
				for range 2 {
					ends.Go(b.PrefillDone)
					ends.Go(b.Release)
					ends.Go(prefill.Release)
				}
				ends.Wait()
			}
		})
	}
	all.Wait()
	require.Zero(t, r.Queued())
	for _, rep := range r.View().Replicas() {
		require.Zero(t, rep.Ongoing(), rep.ID)
		require.Zero(t, rep.QueuedTokens(), rep.ID)
	}
}

// The policy is closed after the last Prepare has returned, and is not called again.
func TestCloseAmongCallers(t *testing.T) {
	pol := new(busy)
	r := connected(t, Options{Policy: pol.policy(), MaxOngoing: 1}, members(2)...)
	var callers sync.WaitGroup
	for range 16 {
		callers.Go(func() {
			for {
				b := new(Reservation)
				if err := r.Reserve(t.Context(), new(policy.Request), b, How{}); err != nil {
					assert.ErrorIs(t, err, ErrClosed)
					return
				}
				b.Release()
			}
		})
	}
	var closers sync.WaitGroup
	for range 4 {
		closers.Go(func() { assert.NoError(t, r.Close()) })
	}
	closers.Wait()
	callers.Wait()
	assert.EqualValues(t, 1, pol.closed.Load(), "closed more than once, or while Prepare ran")
	routed := pol.routed.Load()
	r.Complete(new(policy.Request), policy.To(r.View().Replicas()[0], "x"), policy.Outcome{})
	r.Fleet.Set(nil)
	assert.Equal(t, routed, pol.routed.Load())
	assert.Len(t, r.View().Replicas(), 2)
	for _, rep := range r.View().Replicas() {
		assert.Zero(t, rep.Ongoing())
	}
}

func TestAcquireWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := connected(t, Options{MaxOngoing: 1}, members(1)...)
		first := pick(t, r, new(policy.Request))
		var second Reservation
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			err = r.Reserve(t.Context(), new(policy.Request), &second, How{})
		}()
		synctest.Wait()
		require.Equal(t, 1, r.Queued())
		timer := time.NewTimer(70 * time.Millisecond)
		<-timer.C
		first.Release()
		<-done
		require.NoError(t, err)
		require.Equal(t, policy.ReasonQueued, second.Decision.Reason)
		require.Equal(t, policy.Reason("first"), second.Decision.Rule)
		require.Equal(t, 70*time.Millisecond, second.Decision.Queued)
		second.Release()
	})
}

func TestAcquireGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := connected(t, Options{MaxOngoing: 1}, members(1)...)
		held := pick(t, r, new(policy.Request))
		enqueue(t, r, new(policy.Request))
		enqueue(t, r, new(policy.Request))

		mine := errors.New("the user left")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 1200*time.Millisecond, mine)
		defer cancel()
		err := r.Reserve(ctx, new(policy.Request), new(Reservation), How{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, mine)
		require.EqualError(t, err, "waited 1.2s for a replica with room, behind 2 others: context deadline exceeded: the user left")
		require.Equal(t, 2, r.Queued())
		held.Release()
	})
}

func TestAcquireIsSentAway(t *testing.T) {
	for name, end := range map[string]struct {
		do  func(*Router)
		err error
	}{
		"disconnect":  {func(r *Router) { r.Fleet.Disconnect() }, ErrNotConnected},
		"one by one":  {func(r *Router) { r.Fleet.SetConnected("r0", false); r.Fleet.SetConnected("r1", false) }, ErrNotConnected},
		"empty fleet": {func(r *Router) { r.Fleet.Set(nil) }, ErrNotConnected},
		"draining":    {func(r *Router) { r.Fleet.Set(members(2, draining)) }, ErrNoSuchReplica},
		"close":       {func(r *Router) { r.Close() }, ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := connected(t, Options{MaxOngoing: 1}, members(2)...)
				a, b := pick(t, r, new(policy.Request)), pick(t, r, new(policy.Request))
				errs := make(chan error, 5)
				for range cap(errs) {
					go func() { errs <- r.Reserve(t.Context(), new(policy.Request), new(Reservation), How{}) }()
				}
				synctest.Wait()
				require.Equal(t, 5, r.Queued())
				end.do(r)
				for range cap(errs) {
					require.Equal(t, end.err, <-errs)
				}
				require.Zero(t, r.Queued())
				a.Release()
				b.Release()
				require.Empty(t, departed(r))
			})
		})
	}
}
