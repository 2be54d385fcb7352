package routing

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// choosing is a policy made of a function; it looks at nothing else.
type choosing func(*Request, *View) Decision

func (choosing) Uses() Uses                                     { return 0 }
func (choosing) Prepare(context.Context, *Request, *View) error { return nil }
func (choose choosing) Choose(q *Request, v *View) Decision     { return choose(q, v) }

// firstFree takes the first available in the fleet's order.
func firstFree(q *Request, v *View) Decision {
	for _, r := range v.Connected() {
		if v.Available(q, r) {
			return To(r, "first")
		}
	}
	return Wait()
}

func leastLoaded(q *Request, v *View) Decision {
	if r := v.LeastLoaded(q); r != nil {
		return To(r, ReasonLeastLoaded)
	}
	return Wait()
}

func member(id string, set ...func(*Member)) Member {
	m := Member{Attributes: Attributes{ID: id}}
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
	if o.Policy == nil {
		o.Policy = choosing(firstFree)
	}
	if o.Rand == nil {
		o.Rand = rand.New(rand.NewPCG(1, 2))
	}
	r, err := NewRouter(o)
	require.NoError(t, err)
	r.SetFleet(ms)
	connectAll(r)
	return r
}

func connectAll(r *Router) {
	for _, rep := range r.View().Replicas() {
		r.SetConnected(rep.ID, true)
	}
}

func pick(t testing.TB, r *Router, q *Request) *Booking {
	t.Helper()
	b := new(Booking)
	require.NoError(t, r.Pick(t.Context(), q, b))
	return b
}

// enqueue lets a request wait without a goroutine.
func enqueue(t testing.TB, r *Router, q *Request) *waiter {
	t.Helper()
	w, err := r.pickOrEnqueue(t.Context(), q, new(Booking))
	require.NoError(t, err)
	require.NotNil(t, w, "booked at once")
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

// Held reports whether the booking still holds load.
func (b *Booking) Held() bool {
	if b.router == nil {
		return false
	}
	b.router.mu.Lock()
	defer b.router.mu.Unlock()
	return b.held
}

// meanLoad is the mean load of the connected replicas, 0 where there are none.
func meanLoad(v *View) float64 {
	var sum float64
	for _, r := range v.Connected() {
		sum += v.Load(r)
	}
	return sum / max(float64(len(v.Connected())), 1)
}
