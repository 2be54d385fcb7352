package load

import "github.com/warmpath/warmpath/balancer/policy"

// Damping shrinks the reported load of other clients towards the fleet's mean, as far as it
// does not last: load that was broadcast is old when it is acted on, and
// every client that received it acts alike. Where queues last for seconds and news
// comes every 100 ms it changes next to nothing; where they last for milliseconds, or
// where clients all react to the same news, hardly anything but the mean is left.
//
// The part that is kept is the square of how much of a deviation from the mean was
// still there at the next report: once for the age that the news has when it comes,
// once for the one it has when the next comes. It is learned from the reports
// themselves, with the older ones counting less and less.
//
// The zero value is ready. It belongs to what reports the whole fleet to one Router
// at regular times, and to one goroutine at a time. Damp is O(replicas) and
// allocates only for replicas it has not seen.
type Damping struct {
	before map[string]float64
	// Of deviations from the mean: Σ before·now and Σ before².
	both, old float64
}

// dampingMemory is what is left, at each report, of what was learned before: what is
// known rests on the last twenty or so.
const dampingMemory = 0.95

// Damp replaces the loads, one for each replica of the fleet, by what is to be
// used for them. Sums stay as they are, up to rounding.
func (h *Damping) Damp(loads []Peer) {
	if h.before == nil || len(h.before) > 2*len(loads) { // with those that have left
		h.before = make(map[string]float64, len(loads))
	}
	var ongoing, tokens, was, known float64
	for _, l := range loads {
		ongoing += float64(l.Ongoing) / float64(len(loads))
		tokens += float64(l.QueuedTokens) / float64(len(loads))
		if before, ok := h.before[l.ID]; ok {
			was += before
			known++
		}
	}
	mean := tokens + policy.RequestCost*ongoing
	h.both *= dampingMemory
	h.old *= dampingMemory
	for _, l := range loads {
		now := float64(l.QueuedTokens) + policy.RequestCost*float64(l.Ongoing)
		if before, ok := h.before[l.ID]; ok {
			deviated := before - was/known
			h.both += deviated * (now - mean)
			h.old += deviated * deviated
		}
		h.before[l.ID] = now
	}
	keep := h.keep()
	for i := range loads {
		l := &loads[i]
		l.Ongoing = int(ongoing + keep*(float64(l.Ongoing)-ongoing) + 0.5)
		l.QueuedTokens = int64(tokens + keep*(float64(l.QueuedTokens)-tokens) + 0.5)
	}
}

// keep returns the part of a deviation that is kept: all while nothing is known.
func (h *Damping) keep() float64 {
	if h.old == 0 {
		return 1
	}
	lasts := min(max(h.both/h.old, 0), 1)
	return lasts * lasts
}

// Drift returns which part of the peer load changes from a report to its use, for [Tracker.SetDrift].
func (h *Damping) Drift() float64 { return 1 - h.keep() }
