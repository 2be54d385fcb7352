package server

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// apply applies the parts of an update as a client does.
func apply(known map[uint32]*warmpathv1.Replica, parts ...*warmpathv1.FleetUpdate) {
	if len(parts) > 0 && parts[0].GetSnapshot() {
		clear(known)
	}
	for _, u := range parts {
		for _, n := range u.GetRemoved() {
			delete(known, n)
		}
		for _, r := range u.GetReplicas() {
			known[r.GetNumber()] = r
		}
	}
}

// A client that applies the updates since any version has the fleet.
func TestRosterUpdatesFromAnyVersion(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	r := roster{log: discard, tally: new(tally)}
	history := []map[uint32]*warmpathv1.Replica{{}} // by version
	for range 600 {
		var next []described
		for i := range 12 {
			if rng.IntN(4) > 0 {
				next = append(next, described{Attributes: policy.Attributes{ID: fmt.Sprint("r", i), Address: "x:1", Weight: float64(rng.IntN(3))}})
			}
		}
		rng.Shuffle(len(next), func(i, j int) { next[i], next[j] = next[j], next[i] })
		if c := r.set(next); c.none() {
			continue
		}
		again := r.set(next)
		require.True(t, again.none(), "the same again")
		require.True(t, slices.IsSortedFunc(r.order, func(a, b *member) int { return int(a.number) - int(b.number) }))
		now := make(map[uint32]*warmpathv1.Replica)
		for _, m := range r.order {
			now[m.number] = m.message
		}
		history = append(history, now)
		require.EqualValues(t, len(history)-1, r.version)
		for range 3 {
			from := rng.IntN(len(history))
			known := maps.Clone(history[from])
			apply(known, r.since(uint64(from))...)
			require.Equal(t, now, known, "from %d", from)
		}
	}
	require.Nil(t, r.since(r.version))
	require.True(t, r.since(r.version + 1)[0].GetSnapshot(), "a version of another incarnation")
	require.LessOrEqual(t, len(r.left), maxDepartures)
	require.Positive(t, r.forgot)
	require.True(t, r.since(r.forgot - 1)[0].GetSnapshot())
}
