package policytest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/routertest"
)

// Conform checks what every policy must keep, whatever its rule:
//
//   - it never picks a replica that is not connected, full, draining, excluded,
//     or that does not serve the model; it asks its Choose, not the Router, which
//     would correct such a pick;
//   - when it picks no replica, those it waits for are connected, full and allowed,
//     and it waits for any replica only when none is available;
//   - after a failed attempt it prefers replicas not tried yet, and tries one
//     again when there is no other;
//   - Choose does not allocate while a replica is available;
//   - it survives any change of the fleet, also between Prepare and Choose;
//   - requests with all keys, some or none;
//   - the replicas that would be next are available, allowed and different, and asking
//     reserves nothing;
//   - concurrent use: reservations never exceed max_ongoing_requests and all return.
//
// build returns a new policy for each part. It must be configured so that with
// three replicas it may use every one of them for any request.
func Conform(t *testing.T, build func() policy.Policy) {
	t.Run("picks", func(t *testing.T) { conformPicks(t, build) })
	t.Run("all full", func(t *testing.T) { conformFull(t, build) })
	t.Run("untried first", func(t *testing.T) { conformRetry(t, build) })
	t.Run("no allocation", func(t *testing.T) { conformAllocs(t, build) })
	t.Run("fleet changes", func(t *testing.T) { conformFleet(t, build) })
	t.Run("next", func(t *testing.T) { conformNext(t, build) })
	t.Run("concurrent", func(t *testing.T) { conformConcurrent(t, build) })
}

// conformPicks draws fleets and requests at random.
func conformPicks(t *testing.T, build func() policy.Policy) {
	rnd := routertest.Seeded(42)
	for i := range 300 {
		fleet := randomFleet(rnd, 1+rnd.IntN(8))
		r := NewRouter(t, build(), fleet, func(o *router.Options) {
			o.Node, o.Zone, o.Rand = "n1", "z1", routertest.Seeded(uint64(i))
		})
		for j, m := range fleet {
			if rnd.IntN(3) == 0 && j > 0 && !m.Draining {
				Fill(t, r, m.ID, rnd.IntN(m.MaxOngoing+1))
			}
		}
		for _, m := range fleet[1:] {
			r.Fleet.SetConnected(m.ID, rnd.IntN(5) > 0)
		}
		for j := range 8 {
			q := randomRequest(rnd, i+j, fleet)
			routertest.Check(t, q, r.View(), routertest.Choose(t, r, q))
		}
		if t.Failed() {
			t.Logf("fleet %d: %+v", i, fleet)
			return
		}
	}
}

func randomFleet(rnd *rand.Rand, n int) []router.Member {
	fleet := Fleet(n)
	for i := range fleet {
		m := &fleet[i]
		m.MaxOngoing = 1 + rnd.IntN(3)
		m.Draining = rnd.IntN(6) == 0
		m.Zone = fmt.Sprintf("z%d", rnd.IntN(3))
		m.Node = fmt.Sprintf("n%d", rnd.IntN(4))
		m.Weight = float64(rnd.IntN(4))
		some := func(n int, of ...string) []string {
			return slices.DeleteFunc(of, func(string) bool { return rnd.IntN(n) > 0 })
		}
		m.Adapters, m.Models = some(3, "a", "b"), some(2, "m0", "m1")
	}
	return fleet
}

func randomRequest(rnd *rand.Rand, i int, fleet []router.Member) *policy.Request {
	q := routertest.Request(i)
	q.Adapter = []string{"", "", "a", "b", "missing"}[rnd.IntN(5)]
	q.Model = []string{"", "m0", "m1"}[rnd.IntN(3)]
	for _, m := range fleet {
		switch rnd.IntN(8) {
		case 0:
			q.Exclude = append(q.Exclude, m.ID)
		case 1:
			router.NextAttempt(q, &policy.Replica{Attributes: m.Attributes})
		}
	}
	return q
}

func conformFull(t *testing.T, build func() policy.Policy) {
	r := NewRouter(t, build(), Bounded(Fleet(5), 1))
	release := make(map[string]func(int))
	for _, rep := range r.View().Replicas() {
		release[rep.ID] = Fill(t, r, rep.ID, 1)
	}
	for i := range 8 {
		q := routertest.Request(i)
		if d := routertest.Choose(t, r, q); d.Replica != nil {
			t.Fatalf("picked %s while all are full", d.Replica.ID)
		} else {
			routertest.Check(t, q, r.View(), d)
		}
		var b router.Reservation
		if err := r.Reserve(context.Background(), q, &b, router.How{NoWait: true}); !errors.Is(err, router.ErrFull) {
			t.Fatalf("Pick returns %v while all are full", err)
		}
	}
	for _, free := range release {
		free(1)
	}
	for i := range 8 {
		if d := routertest.Choose(t, r, routertest.Request(i)); d.Replica == nil {
			t.Fatalf("no pick while all are available again")
		}
	}
}

func conformRetry(t *testing.T, build func() policy.Policy) {
	for i := range 40 {
		r := NewRouter(t, build(), Fleet(3))
		q := routertest.Request(i)
		seen := make(map[string]bool)
		for range 3 {
			d := routertest.Choose(t, r, q)
			if d.Replica == nil {
				t.Fatalf("request %d, attempt %d: no pick", i, q.Attempt())
			}
			if seen[d.Replica.ID] {
				t.Fatalf("request %d, attempt %d: picked %s again before all were tried", i, q.Attempt(), d.Replica.ID)
			}
			seen[d.Replica.ID] = true
			router.NextAttempt(q, d.Replica)
		}
		if d := routertest.Choose(t, r, q); d.Replica == nil {
			t.Fatalf("request %d: no pick once all were tried", i)
		}
	}
}

func conformAllocs(t *testing.T, build func() policy.Policy) {
	for _, n := range []int{1, 2, 3, 16, 100} {
		fleet := Bounded(Fleet(n), 2)
		for i := range fleet {
			fleet[i].Adapters = []string{fmt.Sprint(i % 3)}
		}
		r := NewRouter(t, build(), fleet)
		if n > 2 {
			Fill(t, r, "r1", 2)
			r.Fleet.SetConnected("r2", false)
		}
		var qs []*policy.Request
		for i := range 16 {
			q := routertest.Request(i)
			if i >= 8 {
				q.Adapter = fmt.Sprint(i % 4)
			}
			r.Prepare(context.Background(), q)
			qs = append(qs, q)
		}
		p, v := r.Policy(), r.View()
		allocs := testing.AllocsPerRun(20, func() {
			for _, q := range qs {
				p.Choose(q, v)
			}
		})
		if allocs > 0 {
			t.Errorf("%d replicas: Choose allocates %v times in %d picks", n, allocs, len(qs))
		}
	}
}

// conformFleet turns the fleet over while requests are between Prepare and Choose.
func conformFleet(t *testing.T, build func() policy.Policy) {
	rnd := routertest.Seeded(7)
	r := NewRouter(t, build(), Fleet(6))
	pool := Fleet(12)
	for i := range 200 {
		var qs []*policy.Request
		for j := range 8 {
			q := routertest.Request(4*i + j)
			r.Prepare(context.Background(), q)
			qs = append(qs, q)
		}
		rnd.Shuffle(len(pool), func(a, b int) { pool[a], pool[b] = pool[b], pool[a] })
		next := slices.Clone(pool[:1+rnd.IntN(len(pool))])
		for k := range next {
			next[k].Weight = float64(rnd.IntN(3))
		}
		SetFleet(r, next)
		for _, q := range qs {
			d := r.Policy().Choose(q, r.View())
			if d.Replica == nil {
				t.Fatalf("no pick after a change of the fleet, with %d available", len(next))
			}
			if r.View().ByID(d.Replica.ID) != nil { // else the Router corrects it
				routertest.Check(t, q, r.View(), d)
			}
			Pick(t, r, q).Release()
		}
	}
	SetFleet(r, nil)
	if d := r.Policy().Choose(routertest.Request(0), r.View()); d.Replica != nil {
		t.Errorf("picked %s from an empty fleet", d.Replica.ID)
	}
	SetFleet(r, Fleet(3))
	Pick(t, r, routertest.Request(0)).Release()
}

func conformConcurrent(t *testing.T, build func() policy.Policy) {
	const workers, picks, limit = 8, 200, 3
	full := Bounded(Fleet(6), limit)
	r := NewRouter(t, build(), full, func(o *router.Options) { o.MaxQueued = -1 })
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			held := make([]router.Reservation, 4)
			for i := range picks {
				b := &held[i%len(held)]
				b.Release()
				q := routertest.Request(w*picks + i)
				err := r.Reserve(context.Background(), q, b, router.How{NoWait: true})
				switch {
				case errors.Is(err, router.ErrFull):
				case err != nil:
					t.Errorf("Pick: %v", err)
				case b.Decision.Replica.Ongoing() > limit:
					t.Errorf("%s has more than %d reservations", b.Decision.Replica.ID, limit)
				default:
					r.Complete(q, b.Decision, policy.Outcome{Sent: true, Usage: policy.NoUsage})
				}
			}
			for i := range held {
				held[i].Release()
			}
		})
	}
	wg.Go(func() {
		for i := range picks {
			id := full[1+i%3].ID
			switch i % 4 {
			case 0:
				r.Fleet.SetConnected(id, false)
			case 1:
				r.Fleet.Set(full[:4])
			case 2:
				SetFleet(r, full)
			}
		}
		SetFleet(r, full)
	})
	wg.Wait()
	for id, n := range routertest.Ongoing(r) {
		if n != 0 {
			t.Errorf("%s still has %d reservations", id, n)
		}
	}
}

// conformNext asks which replicas would be next after each of a series of picks.
func conformNext(t *testing.T, build func() policy.Policy) {
	rnd := routertest.Seeded(7)
	fleet := randomFleet(rnd, 12)
	r := NewRouter(t, build(), fleet, func(o *router.Options) { o.Rand = routertest.Seeded(9) })
	for i := range 400 {
		q := randomRequest(rnd, i, fleet)
		b := new(router.Reservation)
		if err := r.Reserve(context.Background(), q, b, router.How{NoWait: true}); err != nil {
			continue
		}
		before, v := routertest.Ongoing(r), r.View()
		seen := map[string]bool{b.Decision.Replica.ID: true}
		next := r.Next(q, b.Decision.Replica, len(fleet), nil)
		for _, d := range next {
			if seen[d.Replica.ID] || !v.Available(q, d.Replica) {
				t.Fatalf("request %d: %s is next, and is not available, or was before", i, d.Replica.ID)
			}
			seen[d.Replica.ID] = true
		}
		for _, other := range v.Connected() {
			if q.Pin == "" && !seen[other.ID] && v.Available(q, other) {
				t.Fatalf("request %d: %s is available and never next", i, other.ID)
			}
		}
		if after := routertest.Ongoing(r); !maps.Equal(before, after) {
			t.Fatalf("request %d: asking for the next replica changed the reservations: %v, then %v", i, before, after)
		}
		if i%3 > 0 {
			b.Release()
		}
	}
}
