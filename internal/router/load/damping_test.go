package load

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// tell tempers what is told of a fleet whose deviations last by so much from one
// telling to the next, and returns how much of the last ones is believed.
func tell(h *Damping, rnd *rand.Rand, lasts float64, times int) (ongoing, tokens float64) {
	deviations := make([]float64, 16)
	loads := make([]Peer, len(deviations))
	var told, believed [2]float64
	for range times {
		told, believed = [2]float64{}, [2]float64{}
		for i := range loads {
			deviations[i] = lasts*deviations[i] + (1-lasts)*rnd.NormFloat64()*50/(1-lasts+1e-3)
			loads[i] = Peer{ID: fmt.Sprint(i), Ongoing: 1000 + int(deviations[i]), QueuedTokens: 90_000 + 40*int64(deviations[i])}
			told[0] += deviations[i] * deviations[i]
		}
		h.Damp(loads)
		var ongoing, tokens float64
		for _, l := range loads {
			ongoing += float64(l.Ongoing) / float64(len(loads))
			tokens += float64(l.QueuedTokens) / float64(len(loads))
		}
		for i, l := range loads {
			believed[0] += deviations[i] * (float64(l.Ongoing) - ongoing)
			believed[1] += deviations[i] * (float64(l.QueuedTokens) - tokens) / 40
		}
	}
	return believed[0] / told[0], believed[1] / told[0]
}

func TestHearsayBelievesWhatLasts(t *testing.T) {
	for _, tt := range []struct{ lasts, least, most float64 }{
		{0, 0, 0.1}, {0.5, 0.1, 0.45}, {0.97, 0.65, 1}, {-0.5, 0, 0.05},
	} {
		ongoing, tokens := tell(new(Damping), rand.New(rand.NewPCG(1, 2)), tt.lasts, 300)
		for _, part := range []float64{ongoing, tokens} {
			require.GreaterOrEqual(t, part, tt.least-0.02, "lasts %v", tt.lasts)
			require.LessOrEqual(t, part, tt.most+0.02, "lasts %v", tt.lasts)
		}
	}
}

// What it learned wears off when the load changes its habits.
func TestHearsayLearnsAnew(t *testing.T) {
	h, rnd := new(Damping), rand.New(rand.NewPCG(3, 4))
	before, _ := tell(h, rnd, 0.97, 300)
	after, _ := tell(h, rnd, 0, 300)
	require.Greater(t, before, 0.65)
	require.Greater(t, h.Drift(), 0.85, "what changes is not kept")
	require.Less(t, after, 0.15)
}

func TestHearsayAtFirst(t *testing.T) {
	h := new(Damping)
	require.Zero(t, h.Drift())
	loads := []Peer{{ID: "a", Ongoing: 7, QueuedTokens: 900}, {ID: "b"}}
	h.Damp(loads)
	require.Equal(t, []Peer{{ID: "a", Ongoing: 7, QueuedTokens: 900}, {ID: "b"}}, loads, "nothing is known against it")
	h.Damp(nil)
	for i := range 100 { // replicas come and go
		h.Damp([]Peer{{ID: fmt.Sprint(i), Ongoing: i}, {ID: fmt.Sprint(i + 1), Ongoing: 1}})
	}
	require.LessOrEqual(t, len(h.before), 6)
}

func TestHearsayDoesNotAllocate(t *testing.T) {
	h := new(Damping)
	loads := []Peer{{ID: "a", Ongoing: 7}, {ID: "b"}}
	h.Damp(loads)
	require.Zero(t, testing.AllocsPerRun(100, func() { h.Damp(loads) }))
}
