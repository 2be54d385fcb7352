package server

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// The sum is that of what each client reported last, whatever comes and goes; never below zero.
func TestLedgerAddsUp(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	now := time.Unix(0, 0)
	var l ledger
	model := make(map[string]map[uint32]replicaLoad)
	open := make(map[string]*client)
	limit := uint32(8)
	known := func(n uint32) bool { return n < limit }
	for range 5000 {
		id := fmt.Sprint(rng.IntN(5))
		switch c := open[id]; {
		case c == nil || rng.IntN(50) == 0:
			open[id], model[id] = l.open(id, now), make(map[uint32]replicaLoad)
		case rng.IntN(50) == 0:
			c.ended, c.at = true, now.Add(-time.Hour)
			l.count(now)
			delete(open, id)
			delete(model, id)
		case rng.IntN(100) == 0:
			limit = 4 + uint32(rng.IntN(5))
			l.forget(known)
			for _, lines := range model {
				for n := range lines {
					if !known(n) {
						delete(lines, n)
					}
				}
			}
		default:
			r := &warmpathv1.BookingReport{Number: c.last + 1, Complete: rng.IntN(4) == 0, Loads: new(warmpathv1.Loads)}
			if r.Complete {
				clear(model[id])
			}
			for range rng.IntN(4) {
				n, b := uint32(rng.IntN(10)), replicaLoad{rng.Int64N(3), rng.Int64N(3)}
				appendLoad(r.Loads, n, b)
				if known(n) {
					model[id][n] = b
				}
			}
			l.take(c, r, known, now)
		}
		want := make(map[uint32]replicaLoad)
		for _, lines := range model {
			for n, b := range lines {
				sum := want[n]
				sum.add(b, 1)
				want[n] = sum
			}
		}
		for n, b := range want {
			require.Equal(t, b, l.total[n])
		}
		for n, b := range l.total {
			require.Equal(t, want[n], b)
		}
	}
}

func TestLedgerIgnoresWhoWasReplaced(t *testing.T) {
	var l ledger
	all := func(uint32) bool { return true }
	old := l.open("x", time.Time{})
	l.take(old, &warmpathv1.BookingReport{Number: 1, Loads: loadOf([3]int{1, 1, 1})}, all, time.Time{})
	l.open("x", time.Time{})
	require.Empty(t, l.total)
	l.take(old, &warmpathv1.BookingReport{Number: 2, Loads: loadOf([3]int{1, 1, 1})}, all, time.Time{})
	require.Empty(t, l.total)
}

// No report, however absurd, makes the sum overflow.
func TestLedgerIsBounded(t *testing.T) {
	var l ledger
	for i := range 1000 {
		c := l.open(fmt.Sprint(i), time.Time{})
		l.take(c, &warmpathv1.BookingReport{Number: 1, Loads: &warmpathv1.Loads{
			Replicas: []uint32{1}, Ongoing: []uint32{1<<32 - 1}, QueuedTokens: []uint64{1<<64 - 1},
		}}, func(uint32) bool { return true }, time.Time{})
	}
	require.Equal(t, replicaLoad{1000 * maxOngoing, 1000 * maxTokens}, l.total[1])
}
