package server

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// fleetOf sets a fleet of replicas with these ids.
func (r *roster) fleetOf(ids ...string) {
	var all []described
	for _, id := range ids {
		all = append(all, replicaAt(id, id+":1"))
	}
	r.set(all)
}

// The sum is that of each client's last report, whatever comes and goes, and never below zero.
func TestLedgerAddsUp(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	now := time.Unix(0, 0)
	l := ledger{roster: new(roster)}
	refleet := func() { // some leave, some come back under new numbers
		var ids []string
		for i := range 8 {
			if rng.IntN(4) > 0 {
				ids = append(ids, fmt.Sprint("r", i))
			}
		}
		l.roster.fleetOf(ids...)
	}
	refleet()
	model := make(map[string]map[uint32]replicaLoad)
	open := make(map[string]*client)
	for range 5000 {
		id := fmt.Sprint(rng.IntN(5))
		switch c := open[id]; {
		case c == nil || rng.IntN(50) == 0:
			open[id], model[id] = l.open(id, new(principal), now), make(map[uint32]replicaLoad)
		case rng.IntN(50) == 0:
			c.ended, c.at = true, now.Add(-time.Hour)
			l.count(now)
			delete(open, id)
			delete(model, id)
		case rng.IntN(100) == 0:
			refleet()
			for _, lines := range model {
				maps.DeleteFunc(lines, func(n uint32, _ replicaLoad) bool { return !l.roster.has(n) })
			}
		default:
			r := &warmpathv1.ReservationReport{Number: c.last + 1, Complete: rng.IntN(4) == 0, Loads: new(warmpathv1.Loads)}
			if r.Complete {
				clear(model[id])
			}
			for range rng.IntN(4) {
				n, b := max(l.roster.last, 9)-uint32(rng.IntN(10)), replicaLoad{rng.Int64N(3), rng.Int64N(3)}
				appendLoad(r.Loads, n, b)
				if l.roster.has(n) {
					model[id][n] = b
				}
			}
			l.take(c, r, now)
			require.LessOrEqual(t, len(c.lines), len(l.roster.order))
		}
		want := make(map[uint32]replicaLoad)
		for _, lines := range model {
			for n, b := range lines {
				sum := want[n]
				if sum.add(b, 1); sum != (replicaLoad{}) {
					want[n] = sum
				}
			}
		}
		require.Equal(t, want, l.loads())
	}
}

func TestLedgerIgnoresAWatchThatWasReplaced(t *testing.T) {
	l := ledger{roster: new(roster)}
	l.roster.fleetOf("a")
	old := l.open("x", new(principal), time.Time{})
	l.take(old, &warmpathv1.ReservationReport{Number: 1, Loads: loadOf([3]int{1, 1, 1})}, time.Time{})
	require.Len(t, l.loads(), 1)
	l.open("x", new(principal), time.Time{})
	require.Empty(t, l.loads())
	l.take(old, &warmpathv1.ReservationReport{Number: 2, Loads: loadOf([3]int{1, 1, 1})}, time.Time{})
	require.Empty(t, l.loads())
}

// No report, however large, makes the sum overflow.
func TestLedgerIsBounded(t *testing.T) {
	l := ledger{roster: new(roster)}
	l.roster.fleetOf("a")
	for i := range 1000 {
		c := l.open(fmt.Sprint(i), new(principal), time.Time{})
		l.take(c, &warmpathv1.ReservationReport{Number: 1, Loads: &warmpathv1.Loads{
			Replicas: []uint32{1}, Ongoing: []uint32{1<<32 - 1}, QueuedTokens: []uint64{1<<64 - 1},
		}}, time.Time{})
	}
	require.Equal(t, map[uint32]replicaLoad{1: {1000 * maxOngoing, 1000 * maxTokens}}, l.loads())
}
