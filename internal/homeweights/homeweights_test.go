package homeweights_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/homeweights"
)

// window counts the calls of a time by replica, a fiftieth of them spilled, and ends it.
func window(h *homeweights.Learner, now *time.Time, calls ...int) bool {
	ids := make([]string, len(calls))
	for i, n := range calls {
		ids[i] = fmt.Sprint("r", i)
		h.Add(ids[i], homeweights.Calls{All: n, Spilled: n / 50})
	}
	*now = now.Add(5 * time.Minute)
	return h.Step(*now, ids, true)
}

func TestHomesStep(t *testing.T) {
	even, uneven := []int{100, 100, 100, 100}, []int{100, 50, 100, 150}
	for _, tt := range []struct {
		name    string
		windows [][]int
		changed bool
	}{
		{"uneven, and as uneven as before", [][]int{uneven, uneven}, true},
		{"the first time", [][]int{uneven}, false},
		{"uneven in another way than before", [][]int{{50, 100, 150, 100}, uneven}, false},
		{"even", [][]int{even, even}, false},
		{"a replica that was not available", [][]int{uneven, {100, 0, 100, 150}}, true},
		{"few calls", [][]int{uneven, {20, 10, 20, 30}}, false},
		{"few keys: nearly all calls on one replica", [][]int{{1000, 50, 50, 50}, {1000, 50, 50, 50}}, false},
		{"few spill", [][]int{{49, 49, 49, 60}, {49, 49, 49, 60}}, false},
		{"one replica", [][]int{{1000}, {1000}}, false},
	} {
		var h homeweights.Learner
		now := time.Unix(1e6, 0)
		require.False(t, h.Step(now, nil, true))
		for i, calls := range tt.windows {
			require.Equal(t, tt.changed && i == len(tt.windows)-1, window(&h, &now, calls...), tt.name)
		}
		require.Equal(t, tt.changed, h.Weights() != nil, tt.name)
	}
}

// Whatever the prefixes' homes are at first, the replicas come to have nearly as many calls each; then the weights rest.
func TestHomesBecomeEven(t *testing.T) {
	const replicas, prefixes, perWindow = 8, 150, 4000
	for seed := range uint64(10) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		var scores [prefixes][replicas]float64
		for p := range scores {
			for r := range scores[p] {
				scores[p][r] = rnd.Float64()
			}
		}
		var h homeweights.Learner
		now, ids := time.Unix(1e6, 0), make([]string, replicas)
		for r := range ids {
			ids[r] = fmt.Sprint("r", r)
		}
		spread := func() float64 { // of the prefixes over the replicas, most ÷ mean
			var n [replicas]int
			for p := range scores {
				n[homeOf(scores[p][:], ids, h.Weights())]++
			}
			return float64(slices.Max(n[:])) * replicas / prefixes
		}
		first, moved := spread(), 0
		for range 20 {
			for range perWindow {
				p := rnd.IntN(prefixes)
				r := homeOf(scores[p][:], ids, h.Weights())
				h.Add(ids[r], homeweights.Calls{All: 1, Spilled: min(1, rnd.IntN(40)/39)})
			}
			if now = now.Add(5 * time.Minute); h.Step(now, ids, true) {
				moved++
			}
		}
		require.Less(t, spread(), min(1.25, first), "seed %d, %.2f at first", seed, first)
		require.NotZero(t, moved)
		sum := 0.
		for _, w := range h.Weights() {
			sum += w
		}
		require.InDelta(t, replicas, sum, 1e-6)
	}
}

// homeOf is the first in the rendezvous order with these weights.
func homeOf(scores []float64, ids []string, weights map[string]float64) (home int) {
	best := -1.
	for r, u := range scores {
		w, ok := weights[ids[r]]
		if !ok {
			w = 1
		}
		if s := math.Pow(u, 1/w); s > best {
			home, best = r, s
		}
	}
	return home
}

// A replica that joined, or is not available, has few calls for that reason: its weight stays.
func TestHomesOfOtherReplicasKeepTheirWeights(t *testing.T) {
	for name, last := range map[string]int{"r4 joined": 10, "r4 is not available": 0} {
		var h homeweights.Learner
		now := time.Unix(1e6, 0)
		require.False(t, h.Step(now, nil, true))
		before := []int{100, 50, 100, 150}
		if last == 0 {
			before = append(before, 100)
		}
		require.False(t, window(&h, &now, before...), name)
		require.True(t, window(&h, &now, 100, 50, 100, 150, last), name)
		w := h.Weights()
		require.Equal(t, 1.0, w["r4"], name)
		require.InDelta(t, 4, w["r0"]+w["r1"]+w["r2"]+w["r3"], 1e-9, name)
	}
}

// A server that follows another counts the same calls, so it goes on at once in its place.
func TestHomesFollow(t *testing.T) {
	ids := []string{"r0", "r1", "r2", "r3"}
	var leader, follower homeweights.Learner
	now := time.Unix(1e6, 0)
	for i := range 5 {
		require.False(t, follower.Step(now, ids, false))
		require.Equal(t, i > 1, leader.Step(now, ids, true))
		if i > 1 {
			follower.Follow(leader.Weights())
			require.False(t, follower.Step(now, ids, false))
			require.Equal(t, leader.Weights(), follower.Weights())
		}
		for j, n := range []float64{1000, 500, 1000, 1500} {
			if w, ok := leader.Weights()[ids[j]]; ok {
				n *= w
			}
			leader.Add(ids[j], homeweights.Calls{All: int(n), Spilled: int(n / 50)})
			follower.Add(ids[j], homeweights.Calls{All: int(n), Spilled: int(n / 50)})
		}
		now = now.Add(5 * time.Minute)
	}
	require.True(t, follower.Step(now, ids, true), "the leader is gone")
}

// The calls of replicas that left do not accumulate: where they are most of those counted, the window begins anew.
func TestHomesOfReplicasThatLeft(t *testing.T) {
	var h homeweights.Learner
	now := time.Unix(1e6, 0)
	require.False(t, h.Step(now, nil, true))
	require.False(t, window(&h, &now, 100, 50, 100, 150))
	for i := range 9 {
		h.Add(fmt.Sprint("gone", i), homeweights.Calls{All: 1})
	}
	require.False(t, window(&h, &now, 100, 50, 100, 150))
	require.True(t, window(&h, &now, 100, 50, 100, 150))
}
