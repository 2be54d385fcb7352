package routing

// A Booking is the load charged to a replica from the pick to the end of the
// attempt. The host provides its memory, so that picking does not allocate; the
// zero value is ready for [Router.Pick]. It must not be copied once booked, and
// may be used again once released.
type Booking struct {
	// Decision is what was decided. It stays readable after Release.
	Decision Decision

	router  *Router
	live    *live
	prefill int64 // tokens still charged; guarded by router.mu
	held    bool  // guarded by router.mu
}

// Router returns the Router that made the booking, or nil.
func (b *Booking) Router() *Router { return b.router }

// PrefillDone drops the prompt's share of the load: the first response message
// has come. Later calls, and calls after Release, do nothing. Safe from any
// goroutine.
func (b *Booking) PrefillDone() {
	r := b.router
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.held && b.prefill > 0 {
		r.charge(b.live, 0, -b.prefill)
		b.prefill = 0
	}
}

// Release gives back what the booking holds and serves who waits for it. Later
// calls do nothing. Safe from any goroutine.
func (b *Booking) Release() {
	r := b.router
	if r == nil {
		return
	}
	r.mu.Lock()
	if !b.held {
		r.mu.Unlock()
		return
	}
	b.held = false
	l := b.live
	r.charge(l, -1, -b.prefill)
	b.prefill, b.live = 0, nil
	if r.queued > 0 {
		r.serve(b.Decision.Replica.ID)
	}
	if len(r.departed) > 0 {
		r.forget(b.Decision.Replica.ID, l)
	}
	r.mu.Unlock()
}

// Held reports whether the booking still holds load.
func (b *Booking) Held() bool {
	if b.router == nil {
		return false
	}
	b.router.mu.Lock()
	defer b.router.mu.Unlock()
	return b.held
}
