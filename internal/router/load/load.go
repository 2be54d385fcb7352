// Package load keeps what is under way on the replicas of one fleet and how fast they are.
//
// Load is one figure for all policies: uncached prompt tokens reserved and not yet prefilled, plus a fixed number of
// tokens per active request, divided by the replica's rate. The own reservations are in the replica's book, which every
// pick writes. Peer load is that of other clients, as far as it is reported: by the broadcast of a look-aside server
// ([Tracker.SetPeers]) or by the replica itself ([Tracker.Report]).
package load

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
)

// ReportTTL is how long a replica's report of its load counts.
const ReportTTL = 2 * time.Second

// Step is about how long a step of an engine takes. Reports that are no further apart are of one moment.
const Step = 20 * time.Millisecond

// A Tracker keeps the peer load and the rates of the replicas of one fleet. Safe for use by many goroutines.
type Tracker struct {
	now func() time.Time
	// peerSum is what other clients are known to have on all replicas, at rate 1, in tokens.
	peerSum atomic.Int64
	drift   atomic.Uint64 // as SetDrift set it, as math.Float64bits
	// expiry is when the first report expires, in ns since 1970, or earlier; 0 = none counts.
	expiry atomic.Int64

	// mu guards what follows, and writes of the replicas' peer load and rate. No other lock is taken under it.
	mu      sync.Mutex
	fleet   []*replica // in the fleet's order
	byID    map[string]*replica
	prompt  mean               // uncached tokens of a request
	homes   map[string]float64 // as SetHomes set them
	samples int                // since the groups were made
	apart   bool               // there are several groups
	asking  int                // requests between Ask and Asked
}

// A replica is what a Tracker keeps of one replica.
type replica struct {
	*policy.Replica
	peer     int64        // what SetPeers set last, as in the book
	reported time.Time    // of the Report that counts in its place; zero = none does
	factor   float64      // learned: rate = weight · factor
	pace     outlier.Pace // log(time) by log(work)
	lag      float64      // log(time) beyond the work's
	spread   float64      // its variance
}

// New returns a Tracker of an empty fleet. now is the clock.
func New(now func() time.Time) *Tracker {
	return &Tracker{now: now}
}

// SetFleet replaces the replicas. Those that stay keep their load and their rate. O(replicas).
func (t *Tracker) SetFleet(all []*policy.Replica) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.byID
	t.fleet, t.byID = make([]*replica, len(all)), make(map[string]*replica, len(all))
	for i, rep := range all {
		r := old[rep.ID]
		if r == nil {
			r = &replica{factor: 1}
		}
		delete(old, rep.ID)
		r.Replica = rep
		r.setRate(r.factor)
		t.fleet[i], t.byID[rep.ID] = r, r
	}
	for _, r := range old {
		t.setPeer(r, 0)
	}
	t.setHomes()
}

// ChangeFleet is SetFleet if only these replicas change and more stand behind the others.
func (t *Tracker) ChangeFleet(changed, more []*policy.Replica) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID == nil {
		t.byID = make(map[string]*replica)
	}
	for _, rep := range more {
		r := &replica{factor: 1}
		t.fleet, t.byID[rep.ID] = append(t.fleet, r), r
	}
	for _, rep := range slices.Concat(changed, more) {
		r := t.byID[rep.ID]
		r.Replica = rep
		r.setRate(r.factor)
		if t.homes != nil {
			part.OfReplica(rep).HomeWeight.Store(math.Float64bits(HomeWeight(t.homes, rep.ID)))
		}
	}
}

// A Peer is what other clients have under way on a replica, as a look-aside server reports it: the sum of what its
// clients report, less our own part.
type Peer struct {
	ID           string // of the replica
	Ongoing      int    // reservations of others
	QueuedTokens int64  // uncached prompt tokens that they reserved and that are not yet prefilled
}

// SetPeers replaces the peer load of these replicas; those not named keep what they had, and unknown ids are ignored.
// Peer load counts in the load of a replica, but not as ongoing nor towards any bound of ours. Negative numbers
// count as 0. What is not set anew stays: a client that loses the server sets it to 0. A later [Tracker.Report] of the
// replica itself goes before it, for a time. O(1) per replica named.
func (t *Tracker) SetPeers(loads []Peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range loads {
		if r := t.byID[p.ID]; r != nil {
			r.peer, r.reported = bookOf(p.Ongoing, p.QueuedTokens), time.Time{}
			t.setPeer(r, r.peer)
		}
	}
}

// A Report is what a replica reports of itself, all its clients counted: in a trailer, by an RPC, through a look-aside
// server.
type Report struct {
	Ongoing      int   // requests under way, those that wait included; negative = not reported
	QueuedTokens int64 // uncached prompt tokens not yet prefilled; negative = not reported
	Waiting      int   // of Ongoing, those that the engine has not begun; 0 = none, or not reported
	KVTokens     int   // size of its KV cache in tokens; 0 = not reported
	Draining     bool  // it takes no new sessions
}

// Report takes the load in a replica's own report. What it reports beyond our own reservations is peer load, in the
// place of what SetPeers set before: of the two the later counts. Where it reports no tokens, those that wait count as
// the mean of the requests that ended here. A report counts for ReportTTL; after that what
// SetPeers set last counts again. What is not reported stays as SetPeers set it. Unknown ids are ignored. O(1).
func (t *Tracker) Report(id string, report Report) {
	if report.Ongoing < 0 && report.QueuedTokens < 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.byID[id]
	if r == nil {
		return
	}
	ongoing, tokens := int(r.peer>>state.TokenBits), r.peer&state.TokenMask
	if report.Ongoing >= 0 {
		ongoing = report.Ongoing - r.Ongoing()
	}
	if report.QueuedTokens < 0 && report.Waiting > 0 {
		report.QueuedTokens = int64(float64(report.Waiting) * t.prompt.of)
	}
	if report.QueuedTokens >= 0 {
		tokens = report.QueuedTokens - int64(r.QueuedTokens())
	}
	t.setPeer(r, bookOf(ongoing, tokens))
	r.reported = t.now()
	t.expiry.CompareAndSwap(0, r.reported.Add(ReportTTL).UnixNano())
}

// Assume has a replica that has no report which counts, where others have, count as their mean, as long as a report
// does, and returns true; with an empty id all such replicas. O(replicas).
func (t *Tracker) Assume(id string) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.byID[id]; id != "" && (r == nil || !r.reported.IsZero()) {
		return false
	}
	var ongoing, tokens, n int64
	for _, r := range t.fleet {
		if book := part.OfReplica(r.Replica).Peer.Load(); !r.reported.IsZero() {
			ongoing, tokens, n = ongoing+book>>state.TokenBits, tokens+book&state.TokenMask, n+1
		}
	}
	if n == 0 {
		return false
	}
	now := t.now()
	for _, r := range t.fleet {
		if r.reported.IsZero() && (id == "" || r.ID == id) {
			t.setPeer(r, bookOf(int(ongoing/n), tokens/n))
			r.reported, changed = now, true
		}
	}
	return changed
}

// Ask begins a request that asks replicas for their load. Reports that came before do not count for it: while load grows
// everywhere, a replica that was asked early would look idle beside one that is asked now. Reports of the last Step do if
// other requests are asking, too. Asked follows. O(replicas).
func (t *Tracker) Ask() {
	t.mu.Lock()
	defer t.mu.Unlock()
	oldest := t.now().Add(-Step)
	for _, r := range t.fleet {
		if !r.reported.IsZero() && (t.asking == 0 || r.reported.Before(oldest)) {
			r.reported = time.Time{}
			t.setPeer(r, r.peer)
		}
	}
	t.asking++
}

// Asked ends a request that asked for load, when it has reserved a replica.
func (t *Tracker) Asked() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asking--
}

// Expire drops the reports that are too old. It is called before picks. O(1), and O(replicas) once per ReportTTL.
func (t *Tracker) Expire() {
	expiry := t.expiry.Load()
	if expiry == 0 {
		return
	}
	now := t.now()
	if now.UnixNano() < expiry {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var first int64
	for _, r := range t.fleet {
		switch end := r.reported.Add(ReportTTL); {
		case r.reported.IsZero(): // none, or SetPeers came later
		case now.Before(end):
			if first == 0 || end.UnixNano() < first {
				first = end.UnixNano()
			}
		default:
			r.reported = time.Time{}
			t.setPeer(r, r.peer)
		}
	}
	t.expiry.Store(first)
}

// Of returns the load of a replica that has this book.
func (t *Tracker) Of(r *state.Replica, book int64) float64 {
	book += r.Peer.Load()
	tokens := float64(book&state.TokenMask) + policy.RequestCost*float64(book>>state.TokenBits)
	return tokens * math.Float64frombits(r.InvRate.Load())
}

// SetDrift sets which part of the peer load changes from a report to its use, [Damping.Drift]; 0 until then.
func (t *Tracker) SetDrift(part float64) { t.drift.Store(math.Float64bits(part)) }

// Drift returns how much of the peer load of the fleet changes until it is used, in tokens, whatever the replicas'
// rates. O(1).
func (t *Tracker) Drift() float64 {
	return math.Float64frombits(t.drift.Load()) * float64(t.peerSum.Load())
}

// setPeer puts the load of others on a replica into force. Called with mu held.
func (t *Tracker) setPeer(r *replica, book int64) {
	old := part.OfReplica(r.Replica).Peer.Swap(book)
	t.peerSum.Add(costOf(book) - costOf(old))
}

// costOf is a book's load at rate 1, in whole tokens.
func costOf(book int64) int64 {
	return book&state.TokenMask + policy.RequestCost*(book>>state.TokenBits)
}

// Bounds of a peer book, which leave room for our own in the same word.
const (
	maxPeerOngoing = 1 << 20
	maxPeerTokens  = 1 << 38
)

func bookOf(ongoing int, tokens int64) int64 {
	return int64(min(max(ongoing, 0), maxPeerOngoing))<<state.TokenBits + min(max(tokens, 0), maxPeerTokens)
}
