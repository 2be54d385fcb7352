// Package homeweights has a look-aside server learn how many keys each replica is to be the home of.
package homeweights

import (
	"maps"
	"math"
	"time"

	"github.com/warmpath/warmpath/internal/router/load"
)

// A Learner balances the homes of prompts: a key's home is the first replica in its rendezvous order. Of few prefixes
// that live long, some replicas are home to more than others, and spill for as long. So a look-aside server learns a
// weight for each replica from its clients' calls, and all clients order replicas by these weights: one of weight 2 is
// home to twice as many keys as one of weight 1. Clients with an index of the caches need no weights, and report no
// calls.
//
// Calls are counted in windows. A change of weights moves prompts away from where they are cached. So there is one at
// the end of a window only if
//   - more than a hundredth of the calls spilled,
//   - the homes are uneven as in the window before: sessions that come and go make them uneven by chance,
//   - they are not so uneven that the keys must be few: of these, a change of weight moves too many calls, or none.
//
// A change takes the logarithm of a weight most of the way to where the calls would be even. It makes later windows
// longer, so that the homes come to rest.
//
// The zero value is ready: no weights. It belongs to one goroutine at a time. Step is O(replicas), Add O(1).
type Learner struct {
	weights map[string]float64 // by id of the replica; nil = all are 1
	calls   map[string]Calls   // of this window
	before  map[string]float64 // the excess of the window before
	since   time.Time          // begin of the window; zero = at the next Step
	length  time.Duration      // of windows; 0 = firstWindow
}

// Calls are those whose home is one replica, and how many of them went elsewhere for its load.
type Calls struct{ All, Spilled int }

// The figures are from the simulator.
const (
	firstWindow, lastWindow = 30 * time.Second, 5 * time.Minute
	windowGrowth            = 1.6  // with each change
	minHomeCalls            = 32   // for each replica, in the mean: a window with fewer goes on
	maxSpilled              = 0.01 // as part of the calls
	minAlike                = 0.6  // correlation of the excess with that of the window before
	maxUneven               = 0.5  // standard deviation of the excess: that of about four keys a replica
	stepPart                = 0.7  // of the way
)

// Add counts calls.
func (h *Learner) Add(id string, calls Calls) {
	if h.calls == nil {
		h.calls = make(map[string]Calls)
	}
	c := h.calls[id]
	h.calls[id] = Calls{c.All + calls.All, c.Spilled + calls.Spilled}
}

// Weights returns the weights by id of the replica, nil where there are none yet. It is not written again.
func (h *Learner) Weights() map[string]float64 { return h.weights }

// Follow takes the weights that another server has changed. The window begins anew.
func (h *Learner) Follow(weights map[string]float64) {
	h.change(weights)
	h.begin(time.Time{})
}

// Step ends the window of these replicas when it is time to, and reports whether it changed the weights. Only the
// server that leads changes them. The others count the same calls, so that each can go on in its place.
func (h *Learner) Step(now time.Time, replicas []string, leads bool) (changed bool) {
	if h.since.IsZero() || len(h.calls) > 2*len(replicas) { // most are of replicas that have left
		h.begin(now)
	}
	var all Calls
	for _, id := range replicas {
		all.All += h.calls[id].All
		all.Spilled += h.calls[id].Spilled
	}
	if now.Sub(h.since) < max(h.length, firstWindow) || all.All < minHomeCalls*len(replicas) {
		return false
	}
	excess := h.excess(replicas)
	again := maps.Clone(excess) // without replicas that joined during the window before, or since
	maps.DeleteFunc(again, func(id string, _ float64) bool { _, ok := h.before[id]; return !ok })
	uneven, alike := compare(again, h.before)
	changed = leads && float64(all.Spilled) > maxSpilled*float64(all.All) && uneven < maxUneven && alike > minAlike
	if changed {
		h.change(h.next(replicas, again))
	}
	h.before = excess
	h.begin(now)
	return changed
}

// begin begins a window.
func (h *Learner) begin(now time.Time) {
	h.since = now
	clear(h.calls)
}

func (h *Learner) change(weights map[string]float64) {
	h.weights = weights
	h.length = min(time.Duration(windowGrowth*float64(max(h.length, firstWindow))), lastWindow)
}

// excess is by how much each replica would have more calls than the mean if all had the same weight, as a logarithm. A
// replica without any call was not available, and is left out.
func (h *Learner) excess(replicas []string) map[string]float64 {
	all, sum := make(map[string]float64, len(replicas)), 0.
	for _, id := range replicas {
		if calls := float64(h.calls[id].All); calls > 0 {
			all[id] = calls / load.HomeWeight(h.weights, id)
			sum += all[id]
		}
	}
	for id, calls := range all {
		all[id] = math.Log(calls * float64(len(all)) / sum)
	}
	return all
}

// compare returns the standard deviation of the excess, and its correlation with that of the window before.
func compare(now, before map[string]float64) (uneven, alike float64) {
	var x, y, xx, xy, yy float64
	for id, v := range now {
		w := before[id]
		x, y, xx, xy, yy = x+v, y+w, xx+v*v, xy+v*w, yy+w*w
	}
	n := float64(len(now))
	if xx, yy = n*xx-x*x, n*yy-y*y; xx <= 0 || yy <= 0 {
		return 0, 0
	}
	return math.Sqrt(xx) / n, (n*xy - x*y) / math.Sqrt(xx*yy)
}

// next returns the weights after a change. Replicas that have an excess keep the sum of their weights, the others their
// weights.
func (h *Learner) next(replicas []string, excess map[string]float64) map[string]float64 {
	weights := make(map[string]float64, len(replicas))
	var before, after float64
	for _, id := range replicas {
		w := load.HomeWeight(h.weights, id)
		weights[id] = w
		if x, ok := excess[id]; ok {
			weights[id] = math.Pow(w, 1-stepPart) * math.Exp(-stepPart*x)
			before, after = before+w, after+weights[id]
		}
	}
	for id := range excess {
		weights[id] = min(max(weights[id]*before/after, 1./load.MaxHomeWeight), load.MaxHomeWeight)
	}
	return weights
}
