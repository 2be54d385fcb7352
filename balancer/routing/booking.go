package routing

// A Booking is the load charged to a replica from the pick to the end of the
// attempt. The host provides its memory, so that picking does not allocate; the
// zero value is ready for [Router.Pick]. It must not be copied once booked.
//
// Its methods may be called from any goroutine, and more often than once. They
// cannot tell the pick they are meant for from a later one, so the memory may go
// to another pick only when it is released and nobody else keeps the pointer: a
// host that pools bookings gives them to one holder, one that shares a booking
// (the end of the call here, the first message there) gives each call its own.
type Booking struct {
	// Decision is what was decided. It stays readable after Release.
	Decision Decision

	router  *Router
	replica *Replica
	prefill int64 // tokens still charged; guarded by router.mu
	held    bool  // guarded by router.mu
}

// Router returns the Router that made the booking, or nil.
func (b *Booking) Router() *Router { return b.router }

// PrefillDone drops the prompt's share of the load: the first response message
// has come. Later calls, and calls after Release, do nothing.
func (b *Booking) PrefillDone() {
	r := b.router
	if r == nil {
		return
	}
	r.mu.Lock()
	if b.held && b.prefill > 0 {
		r.charge(b.replica.live, 0, -b.prefill)
		b.prefill = 0
	}
	r.mu.Unlock()
}

// Release gives back what the booking holds and serves who waits for it. Later
// calls do nothing.
func (b *Booking) Release() {
	r := b.router
	if r == nil {
		return
	}
	r.mu.Lock()
	if b.held {
		b.held = false
		r.charge(b.replica.live, -1, -b.prefill)
		if r.queued > 0 || len(r.departed) > 0 {
			r.released(b.replica)
		}
	}
	r.mu.Unlock()
}
