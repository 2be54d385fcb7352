package load

import (
	"math"
	"time"
)

// Homes balances the homes of prompts: the first replicas in the rendezvous order of their keys. The homes of few
// prefixes are uneven, and for good; the fullest replicas spill again and again, and other clients do not see where. A
// look-aside server learns a weight for each replica from its clients' calls, and all clients follow it: a replica of
// weight 2 is home to twice as many keys as one of weight 1. Clients that have an index of the caches need none of it, and
// report no calls.
//
// Each change moves prompts away from where they are cached. So weights change only while more than a hundredth of the
// calls spill, where the homes are uneven as they were in the time before, since sessions that come and go make them
// uneven by chance, and where there are keys enough: of a few, a weight moves all at once. A step takes the logarithm of
// a weight most of the way to where the calls would be even. Steps are farther and farther apart, so that the homes come
// to rest.
//
// The zero value is ready: no weights. It belongs to one goroutine at a time. Step is O(replicas), the rest O(1).
type Homes struct {
	weights map[string]float64 // by id of the replica; nil = all are 1
	calls   map[string]HomeCalls
	before  map[string]float64 // the excess of the time before
	since   time.Time          // the calls are of the time since then
	every   time.Duration      // between two looks at them
}

// HomeCalls are the calls whose home a replica is, and those of them that went elsewhere for its load.
type HomeCalls struct{ All, Spilled int }

// The figures are from the simulator.
const (
	firstStep, lastStep = 30 * time.Second, 5 * time.Minute
	stepGrowth          = 1.6
	minHomeCalls        = 32   // for each replica, in the mean: fewer show little
	maxSpilled          = 0.01 // as part of the calls
	minAlike            = 0.6  // correlation of the excess with that of the time before
	maxUneven           = 0.5  // standard deviation of the excess: that of about four keys a replica
	stepPart            = 0.7  // of the way
	maxHomeWeight       = 4    // weights are within 1/maxHomeWeight and maxHomeWeight
)

// Add counts calls.
func (h *Homes) Add(id string, calls HomeCalls) {
	if h.calls == nil {
		h.calls = make(map[string]HomeCalls)
	}
	c := h.calls[id]
	h.calls[id] = HomeCalls{c.All + calls.All, c.Spilled + calls.Spilled}
}

// Weights returns the weights by id of the replica, nil before the first step. It is not written again.
func (h *Homes) Weights() map[string]float64 { return h.weights }

// Follow takes the weights from another server, and begins to count anew.
func (h *Homes) Follow(weights map[string]float64) { *h = Homes{weights: weights} }

// Step changes the weights of these replicas where it is time to, and reports whether it did.
func (h *Homes) Step(now time.Time, replicas []string) (changed bool) {
	if h.every == 0 {
		h.since, h.every = now, firstStep
	}
	var all HomeCalls
	for _, id := range replicas {
		all.All += h.calls[id].All
		all.Spilled += h.calls[id].Spilled
	}
	if now.Sub(h.since) < h.every || all.All < minHomeCalls*len(replicas) {
		return false
	}
	excess := h.excess(replicas, float64(all.All)/float64(len(replicas)))
	uneven, same := compare(excess, h.before)
	changed = float64(all.Spilled) > maxSpilled*float64(all.All) && uneven < maxUneven && same > minAlike
	if changed {
		h.weights = h.next(replicas, excess)
		h.every = min(time.Duration(stepGrowth*float64(h.every)), lastStep)
	}
	h.since, h.before = now, excess
	clear(h.calls)
	return changed
}

// excess is by how much the calls of each replica would be above the mean if all had the same weight, as a logarithm. A
// replica without any call was not available, and is left out.
func (h *Homes) excess(replicas []string, mean float64) map[string]float64 {
	all := make(map[string]float64, len(replicas))
	for _, id := range replicas {
		if calls := float64(h.calls[id].All); calls > 0 {
			all[id] = math.Log(calls / mean / weightOf(h.weights, id))
		}
	}
	return all
}

// compare returns the standard deviation of the excess, and its correlation with that of the time before; of the
// replicas that stand in both.
func compare(now, before map[string]float64) (uneven, same float64) {
	var n, x, y, xx, xy, yy float64
	for id, v := range now {
		if w, ok := before[id]; ok {
			n, x, y, xx, xy, yy = n+1, x+v, y+w, xx+v*v, xy+v*w, yy+w*w
		}
	}
	if xx, yy = n*xx-x*x, n*yy-y*y; xx <= 0 || yy <= 0 {
		return 0, 0
	}
	return math.Sqrt(xx) / n, (n*xy - x*y) / math.Sqrt(xx*yy)
}

// next returns the weights after a step. Their mean is 1.
func (h *Homes) next(replicas []string, excess map[string]float64) map[string]float64 {
	weights, sum := make(map[string]float64, len(replicas)), 0.
	for _, id := range replicas {
		w := weightOf(h.weights, id)
		if x, ok := excess[id]; ok {
			w = math.Pow(w, 1-stepPart) * math.Exp(-stepPart*x)
		}
		weights[id] = w
		sum += w
	}
	for id, w := range weights {
		weights[id] = min(max(w*float64(len(replicas))/sum, 1./maxHomeWeight), maxHomeWeight)
	}
	return weights
}

// weightOf is the weight of a replica, 1 where it has none that can be.
func weightOf(weights map[string]float64, id string) float64 {
	if w := weights[id]; w >= 1./maxHomeWeight && w <= maxHomeWeight {
		return w
	}
	return 1
}

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
	for _, r := range t.fleet {
		if t.homes != nil {
			r.State().SetHomeWeight(weightOf(t.homes, r.ID))
		}
	}
}
