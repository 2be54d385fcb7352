package load

import (
	"math"

	"github.com/warmpath/warmpath/internal/router/part"
)

// MaxHomeWeight bounds the weights of the homes: they are within 1/MaxHomeWeight and MaxHomeWeight.
const MaxHomeWeight = 4

// SetHomes puts a look-aside server's weights of the homes into force; nil changes nothing. A replica that is not named
// has 1. O(replicas).
func (t *Tracker) SetHomes(weights map[string]float64) {
	if weights == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.homes = weights
	t.setHomes()
}

// setHomes puts the weights, if there are any, into force. Called with mu held.
func (t *Tracker) setHomes() {
	if t.homes == nil {
		return
	}
	for _, r := range t.fleet {
		part.OfReplica(r.Replica).HomeWeight.Store(math.Float64bits(HomeWeight(t.homes, r.ID)))
	}
}

// HomeWeight is the weight of a replica, 1 where it has none within the bounds.
func HomeWeight(weights map[string]float64, id string) float64 {
	if w := weights[id]; w >= 1./MaxHomeWeight && w <= MaxHomeWeight {
		return w
	}
	return 1
}
