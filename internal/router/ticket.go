package router

import "github.com/warmpath/warmpath/balancer/policy"

import "context"

// A Ticket is a request's place in the queue, for a host that blocks no goroutine for it.
type Ticket struct {
	r *Router
	w *waiter
}

// Queue is Acquire for a host that does not block: it reserves at once, and returns no Ticket,
// or puts the request into the queue. Then either Take or GiveUp is called, once.
func (r *Router) Queue(ctx context.Context, q *policy.Request, b *Reservation) (*Ticket, error) {
	w, err := r.pickOrEnqueue(ctx, q, b)
	if err != nil {
		return nil, err
	}
	if w != nil {
		return &Ticket{r, w}, nil
	}
	r.routed(q, b)
	return nil, nil
}

// Done is closed when the wait has ended.
func (t *Ticket) Done() <-chan struct{} { return t.w.done }

// Take returns how the wait ended, as Acquire would; it waits for that.
func (t *Ticket) Take() error {
	<-t.w.done
	if t.w.err == nil {
		t.r.routed(t.w.q, t.w.b)
	}
	return t.w.err
}

// GiveUp leaves the queue and returns the error that Acquire would for this cause. A request
// that was served already gives the reservation back.
func (t *Ticket) GiveUp(cause error) error { return t.r.abandon(cause, t.w) }
