package routing

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
// counts in the load of a replica and so in the mean, beside our own bookings; it
// does not count as ongoing here, nor towards any bound of ours. Negative numbers
// count as 0. What is not told anew stays: who loses the server sets it to 0.
// O(1) per replica named, and one pass over the fleet.
func (r *Router) SetForeignLoad(loads []ForeignLoad) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.view.Load()
	for _, f := range loads {
		if rep := v.ByID(f.ID); rep != nil {
			rep.live.foreign.Store(bookOf(f.Ongoing, f.QueuedTokens))
		}
	}
	if r.keepsSum {
		r.shared.loadSum.Store(v.sumLoads())
	}
}

// Bounds of a foreign book, which leave room for our own in the same word.
const (
	maxForeignOngoing = 1 << 20
	maxForeignTokens  = 1 << 38
)

func bookOf(ongoing int, tokens int64) int64 {
	return int64(min(max(ongoing, 0), maxForeignOngoing))<<tokenBits + min(max(tokens, 0), maxForeignTokens)
}

// Foreign returns what SetForeignLoad told last of this replica: the bookings of
// others, and their uncached prompt tokens not yet prefilled.
func (r *Replica) Foreign() (ongoing int, queuedTokens int64) {
	book := r.live.foreign.Load()
	return int(book >> tokenBits), book & tokenMask
}
