package routing

import "time"

// A ForeignLoad is what others, who book by Routers of their own, have under way
// on a replica, as far as somebody told us: a look-aside server that adds up what
// its clients report, less our own part.
type ForeignLoad struct {
	ID           string // of the replica
	Ongoing      int    // bookings of others
	QueuedTokens int64  // uncached prompt tokens that they booked and that are not yet prefilled
}

// SetForeignLoad replaces what is known of the bookings of others on these
// replicas; those not named keep what they had, and unknown ids are ignored. It
// counts in the load of a replica beside our own bookings; it
// does not count as ongoing here, nor towards any bound of ours. Negative numbers
// count as 0. What is not told anew stays: who loses the server sets it to 0. A
// later [Router.Report] of the replica itself goes before it, for a time.
// O(1) per replica named.
func (r *Router) SetForeignLoad(loads []ForeignLoad) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.view.Load()
	for _, f := range loads {
		if rep := v.ByID(f.ID); rep != nil {
			l := rep.live
			l.told, l.reported = bookOf(f.Ongoing, f.QueuedTokens), time.Time{}
			r.setForeign(l, l.told)
		}
	}
}

// setForeign puts the load of others on a replica into force. Called with mu held.
func (r *Router) setForeign(l *live, book int64) {
	old := l.foreign.Load()
	if old == book {
		return
	}
	r.shared.foreignSum.Add(r.shared.costOf(book) - r.shared.costOf(old))
	l.foreign.Store(book)
}

// Bounds of a foreign book, which leave room for our own in the same word.
const (
	maxForeignOngoing = 1 << 20
	maxForeignTokens  = 1 << 38
)

func bookOf(ongoing int, tokens int64) int64 {
	return int64(min(max(ongoing, 0), maxForeignOngoing))<<tokenBits + min(max(tokens, 0), maxForeignTokens)
}

// unbook is the reverse of bookOf.
func unbook(book int64) (ongoing int, tokens int64) {
	return int(book >> tokenBits), book & tokenMask
}

// MeanForeignLoad returns the mean of the load that others are known to have on the
// replicas, in tokens, whatever the replicas' rates: the part of the mean load that is
// hearsay. O(1).
func (v *View) MeanForeignLoad() float64 {
	if len(v.fleet.replicas) == 0 {
		return 0
	}
	return float64(v.shared.foreignSum.Load()) / float64(len(v.fleet.replicas))
}

// costOf is a book's load at rate 1, in whole tokens.
func (s *shared) costOf(book int64) int64 {
	return book&tokenMask + int64(s.requestCost)*(book>>tokenBits)
}

// Foreign returns what is known of others on this replica, as SetForeignLoad or its own
// Report told last: their bookings, and their uncached prompt tokens not yet prefilled.
func (r *Replica) Foreign() (ongoing int, queuedTokens int64) {
	return unbook(r.live.foreign.Load())
}
