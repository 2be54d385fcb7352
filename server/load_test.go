package server

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A client that applies the updates since any interval has the load, and is sent only what has changed.
func TestLoadsFromAnyTick(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	l := balance{ledger: ledger{roster: new(roster)}}
	l.ledger.roster.fleetOf("a", "b", "c")
	order := l.ledger.roster.order
	now := make(map[uint32]replicaLoad)
	history := []map[uint32]replicaLoad{nil} // by tick
	stale := [][]uint32{nil}
	for range 500 {
		for _, m := range order {
			if rng.IntN(2) == 0 {
				now[m.number] = replicaLoad{rng.Int64N(3), rng.Int64N(3)}
			}
		}
		l.interval++
		l.latest[exactView] = new(warmpathv1.Loads)
		for _, m := range order {
			l.show(m, exactView, now[m.number])
		}
		marked := stale[len(stale)-1]
		if rng.IntN(4) == 0 {
			marked = []uint32{uint32(rng.IntN(3))}
		}
		l.mark(marked, l.interval)
		history, stale = append(history, maps.Clone(now)), append(stale, marked)
		from := len(history) - 1 - rng.IntN(min(len(history), 4))
		u := l.since(exactView, uint64(from))
		require.Equal(t, from == 0, u.GetSnapshot())
		changed := make(map[uint32]bool)
		for at := from + 1; at < len(history) && at > 1; at++ {
			for n, b := range history[at] {
				changed[n] = changed[n] || history[at-1][n] != b
			}
		}
		known := maps.Clone(history[from])
		if known == nil {
			known = map[uint32]replicaLoad{1: {}, 2: {}, 3: {}}
		}
		for n, b := range columns(u.GetLoads()) {
			require.True(t, from == 0 || changed[n])
			known[n] = b
		}
		for _, m := range order {
			require.Equal(t, now[m.number], known[m.number])
		}
		if u.GetStaleSet() {
			require.Equal(t, marked, u.GetStale())
		} else {
			require.Equal(t, marked, stale[from])
		}
	}
	require.Empty(t, l.since(exactView, l.interval).GetLoads().GetReplicas())
	l.ledger.roster.fleetOf("a", "b")
	require.NotContains(t, columns(l.since(exactView, 0).GetLoads()), uint32(3))
}

// A load that the clients report beyond what a message can hold is shown as its largest, not as none.
func TestLoadsDoNotWrap(t *testing.T) {
	d := deploy(t, parse(t, quiet), "chat", newClock().now)
	defer d.close()
	report := &warmpathv1.ReservationReport{Number: 1, Loads: loadOf([3]int{1, 1 << 30, 1})}
	for i := range 1 << 12 {
		w, err := d.watch(unrestricted(), &warmpathv1.WatchStart{ClientId: fmt.Sprint(i), Load: true})
		require.NoError(t, err)
		require.NoError(t, w.reported(report))
	}
	w, err := d.watch(unrestricted(), &warmpathv1.WatchStart{ClientId: "x", Load: true})
	require.NoError(t, err)
	d.tick(d.now())
	news, _, _ := w.news()
	require.Equal(t, uint32(math.MaxUint32), news[0].GetLoad().GetLoads().GetOngoing()[0])
	require.Equal(t, uint32(math.MaxUint32), d.describe(exactView).GetReplicas()[0].GetOngoing())
}
