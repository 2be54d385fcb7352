package router

import (
	"time"

	"github.com/warmpath/warmpath/internal/router/state"
)

// A PeerLoad is what other clients have under way on a replica, as a look-aside server
// reports it: the sum of what its clients report, less our own part.
type PeerLoad struct {
	ID           string // of the replica
	Ongoing      int    // reservations of others
	QueuedTokens int64  // uncached prompt tokens that they reserved and that are not yet prefilled
}

// SetPeerLoad replaces what is known of the reservations of others on these
// replicas; those not named keep what they had, and unknown ids are ignored. It
// counts in the load of a replica beside our own reservations; it
// does not count as ongoing here, nor towards any bound of ours. Negative numbers
// count as 0. What is not set anew stays: a client that loses the server sets it to 0. A
// later [Router.Report] of the replica itself goes before it, for a time.
// O(1) per replica named.
func (r *Router) SetPeerLoad(loads []PeerLoad) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.view.Load()
	for _, f := range loads {
		if rep := v.ByID(f.ID); rep != nil {
			l := liveOf(rep)
			l.peer, l.reported = bookOf(f.Ongoing, f.QueuedTokens), time.Time{}
			r.setPeer(l, l.peer)
		}
	}
}

// setPeer puts the load of others on a replica into force. Called with mu held.
func (r *Router) setPeer(l *live, book int64) {
	old := l.Peer.Load()
	if old == book {
		return
	}
	r.shared.peerSum.Add(r.shared.costOf(book) - r.shared.costOf(old))
	l.Peer.Store(book)
}

// Bounds of a peer book, which leave room for our own in the same word.
const (
	maxPeerOngoing = 1 << 20
	maxPeerTokens  = 1 << 38
)

func bookOf(ongoing int, tokens int64) int64 {
	return int64(min(max(ongoing, 0), maxPeerOngoing))<<state.TokenBits + min(max(tokens, 0), maxPeerTokens)
}

// unbook is the reverse of bookOf.
func unbook(book int64) (ongoing int, tokens int64) {
	return int(book >> state.TokenBits), book & state.TokenMask
}

// MeanPeerLoad returns the mean of the load that others are known to have on the
// replicas, in tokens, whatever the replicas' rates: the part of the mean load that is
// damping. O(1).
func (v *view) MeanPeerLoad() float64 {
	if len(v.fleet.replicas) == 0 {
		return 0
	}
	return float64(v.shared.peerSum.Load()) / float64(len(v.fleet.replicas))
}

// costOf is a book's load at rate 1, in whole tokens.
func (s *shared) costOf(book int64) int64 {
	return book&state.TokenMask + int64(s.requestCost)*(book>>state.TokenBits)
}
