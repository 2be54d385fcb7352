package load

// Damping shrinks the reported load of other clients towards the fleet's mean, as far as it
// does not last: load that was broadcast is old when it is acted on, and
// every client that received it acts alike. Where queues last for seconds and news
// comes every 100 ms it changes next to nothing; where they last for milliseconds, or
// where clients all react to the same news, hardly anything but the mean is left.
//
// The part that is kept is the square of how much of a deviation from the mean was
// still there at the next report: once for the age that the news has when it comes,
// once for the one it has when the next comes. It is learned from the reports
// themselves, for reservations and for tokens, with the older ones counting less and less.
//
// The zero value is ready. It belongs to what reports the whole fleet to one Router
// at regular times, and to one goroutine at a time. Damp is O(replicas) and
// allocates only for replicas it has not seen.
type Damping struct {
	before map[string][2]float64
	// Of deviations from the mean: Σ before·now and Σ before².
	both, old [2]float64
}

// dampingMemory is what is left, at each report, of what was learned before: what is
// known rests on the last twenty or so.
const dampingMemory = 0.95

// Damp replaces the loads, one for each replica of the fleet, by what is to be
// used for them. Sums stay as they are, up to rounding.
func (h *Damping) Damp(loads []Peer) {
	if h.before == nil || len(h.before) > 2*len(loads) { // with those that have left
		h.before = make(map[string][2]float64, len(loads))
	}
	var mean, was [2]float64
	known := 0.
	for i := range loads {
		now := loads[i].figures()
		before, ok := h.before[loads[i].ID]
		for k := range mean {
			mean[k] += now[k] / float64(len(loads))
			if ok {
				was[k] += before[k]
			}
		}
		if ok {
			known++
		}
	}
	for k := range h.both {
		h.both[k] *= dampingMemory
		h.old[k] *= dampingMemory
	}
	for i := range loads {
		now := loads[i].figures()
		if before, ok := h.before[loads[i].ID]; ok {
			for k := range now {
				deviated := before[k] - was[k]/known
				h.both[k] += deviated * (now[k] - mean[k])
				h.old[k] += deviated * deviated
			}
		}
		h.before[loads[i].ID] = now
	}
	keeps := [2]float64{h.keeps(0), h.keeps(1)}
	for i := range loads {
		now := loads[i].figures()
		for k, keep := range keeps {
			now[k] = mean[k] + keep*(now[k]-mean[k])
		}
		loads[i].Ongoing, loads[i].QueuedTokens = int(now[0]+0.5), int64(now[1]+0.5)
	}
}

// keeps is the part of a deviation that is kept; 1 while nothing is known.
func (h *Damping) keeps(k int) float64 {
	if h.old[k] == 0 {
		return 1
	}
	lasts := min(max(h.both[k]/h.old[k], 0), 1)
	return lasts * lasts
}

func (f *Peer) figures() [2]float64 {
	return [2]float64{float64(f.Ongoing), float64(f.QueuedTokens)}
}
