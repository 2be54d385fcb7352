package load

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// damp damps several reports of a fleet in which a part of each deviation, lasts, persists from one report to the
// next. It returns the parts of the last deviations that remain.
func damp(h *Damping, rnd *rand.Rand, lasts float64, times int) (ongoing, tokens float64) {
	deviations := make([]float64, 16)
	loads := make([]Peer, len(deviations))
	var reported, kept [2]float64
	for range times {
		reported, kept = [2]float64{}, [2]float64{}
		for i := range loads {
			deviations[i] = lasts*deviations[i] + (1-lasts)*rnd.NormFloat64()*50/(1-lasts+1e-3)
			loads[i] = Peer{ID: fmt.Sprint(i), Ongoing: 1000 + int(deviations[i]), QueuedTokens: 90_000 + 40*int64(deviations[i])}
			reported[0] += deviations[i] * deviations[i]
		}
		h.Damp(loads)
		var ongoing, tokens float64
		for _, l := range loads {
			ongoing += float64(l.Ongoing) / float64(len(loads))
			tokens += float64(l.QueuedTokens) / float64(len(loads))
		}
		for i, l := range loads {
			kept[0] += deviations[i] * (float64(l.Ongoing) - ongoing)
			kept[1] += deviations[i] * (float64(l.QueuedTokens) - tokens) / 40
		}
	}
	return kept[0] / reported[0], kept[1] / reported[0]
}

func TestDampingKeepsWhatLasts(t *testing.T) {
	for _, tt := range []struct{ lasts, least, most float64 }{
		{0, 0, 0.1}, {0.5, 0.1, 0.45}, {0.97, 0.65, 1}, {-0.5, 0, 0.05},
	} {
		ongoing, tokens := damp(new(Damping), rand.New(rand.NewPCG(1, 2)), tt.lasts, 300)
		for _, part := range []float64{ongoing, tokens} {
			require.GreaterOrEqual(t, part, tt.least-0.02, "lasts %v", tt.lasts)
			require.LessOrEqual(t, part, tt.most+0.02, "lasts %v", tt.lasts)
		}
	}
}

// The learned damping changes when deviations no longer persist.
func TestDampingLearnsAgain(t *testing.T) {
	h, rnd := new(Damping), rand.New(rand.NewPCG(3, 4))
	before, _ := damp(h, rnd, 0.97, 300)
	after, _ := damp(h, rnd, 0, 300)
	require.Greater(t, before, 0.65)
	require.Greater(t, h.Drift(), 0.85, "what changes is not kept")
	require.Less(t, after, 0.15)
}

func TestDampingAtFirst(t *testing.T) {
	h := new(Damping)
	require.Zero(t, h.Drift())
	loads := []Peer{{ID: "a", Ongoing: 7, QueuedTokens: 900}, {ID: "b"}}
	h.Damp(loads)
	require.Equal(t, []Peer{{ID: "a", Ongoing: 7, QueuedTokens: 900}, {ID: "b"}}, loads, "without history nothing is damped")
	h.Damp(nil)
	for i := range 100 { // replicas come and go
		h.Damp([]Peer{{ID: fmt.Sprint(i), Ongoing: i}, {ID: fmt.Sprint(i + 1), Ongoing: 1}})
	}
	require.LessOrEqual(t, len(h.before), 6)
}

func TestDampingDoesNotAllocate(t *testing.T) {
	h := new(Damping)
	loads := []Peer{{ID: "a", Ongoing: 7}, {ID: "b"}}
	h.Damp(loads)
	require.Zero(t, testing.AllocsPerRun(100, func() { h.Damp(loads) }))
}
