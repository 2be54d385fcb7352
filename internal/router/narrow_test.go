package router

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/part"
)

// naiveNext is Next without sets: the list of excluded replicas grows, and each replica is looked up in it.
func naiveNext(r *Router, q *policy.Request, reserved *policy.Replica, n int) (ids []string) {
	c := *q
	part.OfRequest(&c).Sets = nil
	c.Exclude = append(slices.Clone(q.Exclude), reserved.ID)
	for range n {
		r.mu.Lock()
		d := naive(r, &c)
		r.mu.Unlock()
		if d.Replica == nil {
			break
		}
		ids = append(ids, d.Replica.ID)
		c.Exclude = append(c.Exclude, d.Replica.ID)
	}
	return ids
}

// naive is one step of naiveNext.
func naive(r *Router, q *policy.Request) policy.Decision {
	v := r.view.Load()
	if r.opts.Policy.Preview != nil {
		if d := r.opts.Policy.Preview(q, v); d.Replica != nil {
			return d
		}
	}
	if rep := v.LeastLoaded(q); rep != nil {
		return policy.To(rep, policy.ReasonLeastLoaded)
	}
	return policy.Decision{}
}

func previewing(choose func(*policy.Request, policy.View) policy.Decision) policy.Policy {
	return policy.Policy{Choose: choose, Preview: choose}
}

// However long the lists of excluded and tried replicas are, the next replica is the one that the lists themselves
// give, also when the fleet changes in between.
func TestLongListsGiveTheSameReplicas(t *testing.T) {
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		some := func() []Member {
			ms := members(1 + rnd.IntN(150))
			rnd.Shuffle(len(ms), func(i, j int) { ms[i], ms[j] = ms[j], ms[i] })
			return ms[:1+rnd.IntN(len(ms))]
		}
		policies := []policy.Policy{choosing(leastLoaded), previewing(leastLoaded), previewing(firstFree)}
		r := connected(t, Options{Policy: policies[rnd.IntN(3)]}, some()...)
		var kept []*Reservation
		for range 20 {
			q, b := new(policy.Request), new(Reservation)
			for range rnd.IntN(3) * rnd.IntN(60) {
				q.Exclude = append(q.Exclude, fmt.Sprintf("r%d", rnd.IntN(200)))
			}
			for range rnd.IntN(3) * rnd.IntN(60) {
				NextAttempt(q, &policy.Replica{Attributes: policy.Attributes{ID: fmt.Sprintf("r%d", rnd.IntN(200))}})
			}
			fresh := *q
			err := r.Reserve(t.Context(), q, b, How{NoWait: true})
			old := r.View()
			if err != nil {
				require.ErrorIs(t, err, ErrNoSuchReplica)
				require.False(t, slices.ContainsFunc(old.Replicas(), func(x *policy.Replica) bool { return !slices.Contains(q.Exclude, x.ID) }), "seed %d", seed)
				continue
			}
			kept = append(kept, b)
			require.NotContains(t, q.Exclude, b.Decision.Replica.ID, "seed %d", seed)
			if rnd.IntN(3) == 0 {
				r.Fleet.Set(some())
				connectAll(r)
			}
			want := naiveNext(r, &fresh, b.Decision.Replica, 16)
			var got []string
			for _, d := range r.Next(q, b.Decision.Replica, 16, nil) {
				got = append(got, d.Replica.ID)
			}
			require.Equal(t, want, got, "seed %d", seed)
			require.Equal(t, fresh.Exclude, q.Exclude)
			for _, v := range []policy.View{old, r.View()} {
				for _, x := range v.Replicas() {
					require.Equal(t, slices.Contains(q.Exclude, x.ID), excluded(q, part.OfRequest(q), x), "seed %d", seed)
					require.Equal(t, slices.Contains(part.OfRequest(q).Tried, x.ID), q.Tried(x), "seed %d", seed)
				}
			}
		}
		for _, b := range kept {
			b.Release()
		}
	}
}

// A choice does not search long lists: they are empty during it.
func TestLongListsAreNotSearched(t *testing.T) {
	hidden := func(q *policy.Request, v policy.View) policy.Decision {
		excluded, tried := q.Exclude, part.OfRequest(q).Tried
		q.Exclude, part.OfRequest(q).Tried = make([]string, len(excluded)), make([]string, len(tried))
		defer func() { q.Exclude, part.OfRequest(q).Tried = excluded, tried }()
		return leastLoaded(q, v)
	}
	q := new(policy.Request)
	for i := range 40 {
		q.Exclude = append(q.Exclude, fmt.Sprintf("r%d", i))
		NextAttempt(q, &policy.Replica{Attributes: policy.Attributes{ID: fmt.Sprintf("r%d", 40+i)}})
	}
	r := connected(t, Options{Policy: previewing(hidden)}, members(100)...)
	b := pick(t, r, q)
	require.Equal(t, "r80", b.Decision.Replica.ID)
	next := r.Next(q, b.Decision.Replica, 3, nil)
	require.Len(t, next, 3)
	for i, d := range next {
		require.Equal(t, fmt.Sprintf("r%d", 81+i), d.Replica.ID)
	}
	b.Release()

	// In the queue too, for a fleet that changes meanwhile.
	r = connected(t, Options{Policy: choosing(hidden)}, members(41, room(1))...)
	first := pick(t, r, q)
	var ticket Ticket
	require.ErrorIs(t, r.Reserve(t.Context(), q, new(Reservation), How{Ticket: &ticket}), ErrQueued)
	r.Fleet.Set(members(42, room(1)))
	connectAll(r)
	require.NoError(t, ticket.Take())
	require.Equal(t, "r41", ticket.w.b.Decision.Replica.ID)
	ticket.w.b.Release()
	first.Release()
}

// The cost of a query that excludes all but a few replicas of a large fleet, next to one that excludes none.
func BenchmarkNext(b *testing.B) {
	const replicas, n = 1000, 16
	for _, excluded := range []int{0, 8, 100, 900} {
		for name, next := range map[string]func(*Router, *policy.Request, *policy.Replica){
			"sets":  func(r *Router, q *policy.Request, reserved *policy.Replica) { r.Next(q, reserved, n, nil) },
			"lists": func(r *Router, q *policy.Request, reserved *policy.Replica) { naiveNext(r, q, reserved, n) },
		} {
			b.Run(fmt.Sprintf("excluded=%d/%s", excluded, name), func(b *testing.B) {
				r := connected(b, Options{Policy: previewing(leastLoaded)}, members(replicas)...)
				q, bk := new(policy.Request), new(Reservation)
				for i := range excluded {
					q.Exclude = append(q.Exclude, fmt.Sprintf("r%d", i))
				}
				if err := r.Reserve(context.Background(), q, bk, How{NoWait: true}); err != nil {
					b.Fatal(err)
				}
				for b.Loop() {
					next(r, q, bk.Decision.Replica)
				}
			})
		}
	}
}

// A settled request keeps none of the lists, and neither does its shadow.
func TestSettle(t *testing.T) {
	var completed []*policy.Request
	note := func(q *policy.Request) { completed = append(completed, q) }
	shadow := ending(note)
	r := connected(t, Options{Policy: ending(note), Shadow: shadow}, members(40)...)
	q := new(policy.Request)
	for i := range 20 {
		q.Exclude = append(q.Exclude, fmt.Sprintf("r%d", i))
	}
	for i := 20; i < 29; i++ {
		NextAttempt(q, r.View().ByID(fmt.Sprintf("r%d", i)))
	}
	b := pick(t, r, q)
	require.Equal(t, "r29", b.Decision.Replica.ID)
	Settle(q)
	b.Release()
	r.Complete(q, b.Decision, policy.Outcome{Sent: true, Usage: policy.NoUsage})
	require.Len(t, completed, 2, "the policy and its shadow")
	for _, q := range completed {
		require.Empty(t, q.Exclude)
		require.Empty(t, part.OfRequest(q).Tried)
		require.Nil(t, part.OfRequest(q).Sets)
		require.Equal(t, 10, q.Attempt())
	}
}

// ending is a policy that records which requests end.
func ending(note func(*policy.Request)) policy.Policy {
	p := choosing(leastLoaded)
	p.Observer.Completed = func(q *policy.Request, _ policy.Decision, _ policy.Outcome) { note(q) }
	return p
}
