package router

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/warmpath/warmpath/balancer/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// choosing is a policy made of a function; it looks at nothing else.
func choosing(choose func(*policy.Request, policy.View) policy.Decision) policy.Policy {
	return policy.Policy{Choose: choose}
}

// firstFree takes the first available in the fleet's order.
func firstFree(q *policy.Request, v policy.View) policy.Decision {
	for _, r := range v.Connected() {
		if v.Available(q, r) {
			return policy.To(r, "first")
		}
	}
	return policy.Wait()
}

func leastLoaded(q *policy.Request, v policy.View) policy.Decision {
	if r := v.LeastLoaded(q); r != nil {
		return policy.To(r, policy.ReasonLeastLoaded)
	}
	return policy.Wait()
}

func member(id string, set ...func(*Member)) Member {
	m := Member{Attributes: policy.Attributes{ID: id}}
	for _, f := range set {
		f(&m)
	}
	return m
}

func room(n int) func(*Member)            { return func(m *Member) { m.MaxOngoing = n } }
func draining(m *Member)                  { m.Draining = true }
func models(ms ...string) func(*Member)   { return func(m *Member) { m.Models = ms } }
func adapters(as ...string) func(*Member) { return func(m *Member) { m.Adapters = as } }
func at(node, zone string) func(*Member) {
	return func(m *Member) { m.Node, m.Zone = node, zone }
}

func members(n int, set ...func(*Member)) []Member {
	ms := make([]Member, n)
	for i := range ms {
		ms[i] = member(fmt.Sprintf("r%d", i), set...)
	}
	return ms
}

// connected returns a Router over the members, all connected.
func connected(t testing.TB, o Options, ms ...Member) *Router {
	t.Helper()
	if o.Policy.Choose == nil {
		o.Policy = choosing(firstFree)
	}
	if o.Rand == nil {
		o.Rand = rand.New(rand.NewPCG(1, 2))
	}
	r, err := NewRouter(o)
	require.NoError(t, err)
	r.Fleet.Set(ms)
	connectAll(r)
	return r
}

func connectAll(r *Router) {
	for _, rep := range r.View().Replicas() {
		r.Fleet.SetConnected(rep.ID, true)
	}
}

func pick(t testing.TB, r *Router, q *policy.Request) *Reservation {
	t.Helper()
	b := new(Reservation)
	require.NoError(t, r.Reserve(t.Context(), q, b, How{NoWait: true}))
	return b
}

// enqueue lets a request wait without a goroutine.
func enqueue(t testing.TB, r *Router, q *policy.Request) *waiter {
	t.Helper()
	w, err := pickOrEnqueue(r, t.Context(), q, new(Reservation))
	require.NoError(t, err)
	require.NotNil(t, w, "reserved at once")
	return w
}

// ticking is a clock that advances by a millisecond each time it is read.
func ticking() func() time.Time {
	now := time.Unix(0, 0)
	return func() time.Time {
		now = now.Add(time.Millisecond)
		return now
	}
}

// Held reports whether the reservation still holds load.
func (b *Reservation) Held() bool {
	return b.held.Load()
}

// departed are the live parts of replicas that left and have reservations.
func departed(r *Router) map[string]*live {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := maps.Clone(r.Fleet.known)
	maps.DeleteFunc(left, func(id string, l *live) bool { return r.View().ByID(id) != nil || l.Ongoing() == 0 })
	return left
}

// meanLoad is the mean load of the connected replicas, 0 where there are none.
func meanLoad(v policy.View) float64 {
	var sum float64
	for _, r := range v.Connected() {
		sum += v.Load(r)
	}
	return sum / max(float64(len(v.Connected())), 1)
}

// pickOrEnqueue reserves at once, or returns the waiter it put into the queue.
func pickOrEnqueue(r *Router, ctx context.Context, q *policy.Request, b *Reservation) (*waiter, error) {
	var ticket Ticket
	if err := r.Reserve(ctx, q, b, How{Ticket: &ticket}); err != ErrQueued {
		return nil, err
	}
	return ticket.w, nil
}
