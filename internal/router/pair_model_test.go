package router

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/part"
)

// Random lives of requests over random fleets with roles leave nothing behind, and no leg is ever reserved alone.
func TestLegsModel(t *testing.T) {
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		one := func(of ...string) string { return of[rnd.IntN(len(of))] }
		fleet := func() (ms []Member) {
			for i := range 1 + rnd.IntN(8) {
				m := member(fmt.Sprint("r", i), label(one("x", "y")), room(1+rnd.IntN(3)))
				m.Role = one("", policy.RolePrefill, policy.RoleDecode)
				m.Draining = rnd.IntN(8) == 0
				ms = append(ms, m)
			}
			return ms
		}
		rules := []func(*policy.Request, policy.View) policy.Decision{leastLoaded, leastOfTwo, fixedOrder, capricious}
		p := loading(rules[seed%4])
		var under int
		p.Observer.Routed = func(*policy.Request, policy.Decision) { under++ }
		p.Observer.Completed = func(*policy.Request, policy.Decision, policy.Outcome) { under-- }
		r := split(t, Options{Policy: p, MaxQueued: 5}, fleet()...)
		type life struct {
			q      *policy.Request
			pre, b *Reservation
			ticket Ticket
			waits  bool
		}
		var lives []*life
		end := func(l *life) {
			if l.waits {
				_ = l.ticket.GiveUp(context.Canceled)
				return
			}
			for _, b := range []*Reservation{l.pre, l.b} {
				if b.Held() {
					b.Release()
					r.Complete(l.q, b.Decision, policy.Outcome{Sent: true})
				}
			}
		}
		for range 400 {
			switch rnd.IntN(10) {
			case 0:
				r.Fleet.Set(fleet())
				connectAll(r)
			case 1:
				r.Fleet.SetConnected(fmt.Sprint("r", rnd.IntN(8)), rnd.IntN(2) == 0)
			case 2, 3, 4:
				if len(lives) == 0 {
					continue
				}
				i := rnd.IntN(len(lives))
				l := lives[i]
				if !l.waits && l.pre.Held() && rnd.IntN(2) == 0 { // the prefill leg ends first
					l.pre.Release()
					r.Complete(l.q, l.pre.Decision, policy.Outcome{Sent: true})
					continue
				}
				end(l)
				lives = append(lives[:i], lives[i+1:]...)
			default:
				l := &life{q: ask(rnd.IntN(30_000)), pre: new(Reservation), b: new(Reservation)}
				how := How{Legs: &Legs{Prefill: l.pre, Only: rnd.IntN(3) == 0}, NoWait: rnd.IntN(2) == 0}
				if !how.NoWait {
					how.Ticket = &l.ticket
				}
				switch err := r.Reserve(t.Context(), l.q, l.b, how); err {
				case nil:
					require.True(t, l.b.Held())
					require.Equal(t, l.pre.Decision.Replica != nil, l.pre.Held(), "seed %d", seed)
					require.Equal(t, l.pre.Held(), part.OfDecision(&l.b.Decision).Decode)
					if d := l.pre.Decision.Replica; d != nil {
						require.Equal(t, d.Pair, l.b.Decision.Replica.Pair)
						require.NotEqual(t, policy.RoleDecode, d.Role)
						require.NotEqual(t, d.ID, l.b.Decision.Replica.ID)
					}
					if how.Legs.Only {
						require.Equal(t, l.pre.Held(), l.b.Decision.Replica.Role != "")
						require.True(t, !l.pre.Held() || l.pre.Decision.Replica.Role != "")
					}
					require.NotEqual(t, policy.RolePrefill, l.b.Decision.Replica.Role)
					lives = append(lives, l)
				case ErrQueued:
					l.waits = true
					lives = append(lives, l)
				default:
					require.False(t, l.b.Held() || l.pre.Held(), "seed %d: %v", seed, err)
				}
			}
			for _, l := range lives {
				if !l.waits {
					continue
				}
				select {
				case <-l.ticket.Done():
					_ = l.ticket.Take() // on an error it holds nothing
					l.waits = false
				default:
				}
			}
		}
		for _, l := range lives {
			end(l)
		}
		idle(t, r)
		require.Empty(t, departed(r))
		require.Zero(t, under, "seed %d: a route without an end", seed)
		require.Zero(t, r.Queued())
		require.NoError(t, r.Close())
	}
}
