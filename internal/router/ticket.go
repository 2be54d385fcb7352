package router

import "context"

// A Ticket is a request's place in the queue, for a host that blocks no goroutine for it.
type Ticket struct {
	r *Router
	w *waiter
}

// Done is closed when the wait has ended.
func (t Ticket) Done() <-chan struct{} { return t.w.done }

// Take returns how the wait ended, as Reserve would; it waits for that.
func (t Ticket) Take() error {
	<-t.w.done
	if t.w.err == nil {
		t.r.routed(t.w.q, t.w.b)
	}
	return t.w.err
}

// wait is Take, bounded by a context.
func (t Ticket) wait(ctx context.Context) error {
	select {
	case <-t.w.done:
		return t.Take()
	case <-ctx.Done():
		return t.GiveUp(endOf(ctx))
	}
}

// GiveUp leaves the queue and returns the error that Reserve would for this cause. A request
// that was served already gives the reservation back.
func (t Ticket) GiveUp(cause error) error {
	r, w := t.r, t.w
	r.mu.Lock()
	if w.waiting {
		waited := r.opts.Now().Sub(w.since)
		r.queue.settle(w, nil)
		r.mu.Unlock()
		return &WaitError{Waited: waited, Behind: w.behind, Cause: cause}
	}
	r.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	w.b.Withdraw(w.q) // served in the same moment: the next in the queue takes it
	return &WaitError{Waited: w.b.Decision.Queued, Behind: w.behind, Cause: cause}
}

// backedOff lets a request choose whose backoff has passed.
func (t Ticket) backedOff() {
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	u := &t.r.queue
	if !t.w.waiting {
		return
	}
	u.tick()
	if t.w.waiting { // a mark that has ended may have let it choose
		u.again(t.w)
	}
	u.arm()
}
