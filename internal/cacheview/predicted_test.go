package cacheview

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
)

// What is under way on a rank is the sum of the predictions that began in its incarnation and have not ended, in
// whatever order they end, and however often. The end of a prediction of an earlier incarnation, or of a replica
// that has left, subtracts nothing.
func TestPredictions(t *testing.T) {
	type held struct {
		Prediction
		member string
		rank   int
		gone   bool // nothing of it is left
	}
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		members := policytest.Fleet(3)
		for i := range members {
			members[i].Ranks = 1 + i
		}
		w := newWorld(t, Options{MaxBytes: 1 << 20, Grain: defaults.Grain}, members...)
		var all []*held
		for range 200 {
			at := rnd.IntN(len(members))
			id := members[at].ID
			switch rnd.IntN(8) {
			case 0: // a replica restarts
				rep := w.fleet.Replicas[at]
				w.FleetChanged(policy.FleetChange{Added: []*policy.Replica{rep}, Removed: []*policy.Replica{rep}})
				for _, h := range all {
					h.gone = h.gone || h.member == id
				}
			case 1, 2, 3:
				if len(all) > 0 {
					h := all[rnd.IntN(len(all))]
					h.End(true)
					h.gone = true
				}
			default:
				h := &held{member: id, rank: rnd.IntN(members[at].Ranks)}
				r := Route{Work: int64(1 + rnd.IntN(100)), BlockTokens: 16, Alone: rnd.IntN(8) == 0}
				if rnd.IntN(2) == 0 {
					r.Blocks = full(tokens(rnd.IntN(50), 320), 1)
				}
				for _, other := range all {
					other.gone = other.gone || r.Alone && other.member == id
				}
				w.members[id].Routed(&h.Prediction, h.rank, r)
				all = append(all, h)
			}
			for i := range members {
				m := w.members[members[i].ID]
				for rank := range members[i].Ranks {
					var work int64
					live := 0
					for _, h := range all {
						if !h.gone && h.member == m.id && h.rank == rank {
							work += h.work
							live += len(h.blocks)
						}
					}
					require.Equal(t, work, m.Work(rank), "seed %d", seed)
					require.Equal(t, live, m.own(rank).live, "seed %d", seed)
				}
			}
		}
	}
}
