package router

import "github.com/warmpath/warmpath/balancer/policy"

import "github.com/warmpath/warmpath/internal/outlier"

// A Reservation is the load charged to a replica from the pick to the end of the
// attempt. The host provides its memory, so that picking does not allocate; the
// zero value is ready for [Router.Reserve]. It must not be copied once reserved.
//
// Its methods may be called from any goroutine, and more often than once. They
// cannot tell the pick they are meant for from a later one, so the memory may go
// to another pick only when it is released and nothing else keeps the pointer: a
// host that pools reservations gives them to one holder, one that shares a reservation
// (the end of the call here, the first message there) gives each call its own.
type Reservation struct {
	// Decision is what was decided. It stays readable after Release.
	Decision policy.Decision

	router  *Router
	replica *policy.Replica
	prefill int64 // tokens still charged; guarded by router.mu

	held    bool // in the books; guarded by router.mu
	attempt outlier.Attempt
}

// Router returns the Router that made the reservation, or nil.
func (b *Reservation) Router() *Router { return b.router }

// PrefillDone drops the prompt's share of the load: the first response message
// has come. Later calls, and calls after Release, do nothing.
func (b *Reservation) PrefillDone() {
	r := b.router
	if r == nil {
		return
	}
	r.mu.Lock()
	b.dropPrefill()
	r.mu.Unlock()
	b.shareRoute()
}

// dropPrefill is PrefillDone. Called with the Router's mutex held.
func (b *Reservation) dropPrefill() {
	if b.held && b.prefill > 0 {
		b.router.Health.charge(liveOf(b.replica), 0, -b.prefill)
		b.prefill = 0
	}
}

// Release gives back what the reservation holds and serves the requests that wait for it. Later
// calls do nothing.
func (b *Reservation) Release() {
	r := b.router
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock() // also when the policy panics, which is called for the requests that wait
	if b.end() && (r.queue.queued > 0 || len(r.Fleet.departed) > 0) {
		r.Fleet.released(b.replica)
	}
	r.Health.force()
}

// Withdraw ends the reservation of an attempt that was never sent: Release, and the policy takes
// back what it has noted and learned. q is the request of the pick; the goroutine that has
// it calls this. Later calls do nothing.
func (b *Reservation) Withdraw(q *policy.Request) {
	b.Release()
	if b.router == nil {
		return
	}
	b.router.Complete(q, b.Decision, policy.Outcome{Fault: policy.GivenUp, Usage: policy.NoUsage})
	b.Decision.State().Observed, b.Decision.State().Chosen = false, false
}

// end takes the reservation out of the books, and reports whether it was in them. Called
// with the Router's mutex held.
func (b *Reservation) end() bool {
	if !b.held {
		return false
	}
	b.held = false
	b.router.outliers.End(&b.attempt)
	b.router.Health.charge(liveOf(b.replica), -1, -b.prefill)
	return true
}
