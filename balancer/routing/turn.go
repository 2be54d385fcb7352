package routing

import "context"

// A Turn is a request's place in the queue, for a host that blocks no goroutine for it.
type Turn struct {
	r *Router
	w *waiter
}

// Queue is Acquire for a host that does not block: it books at once, and returns no Turn,
// or puts the request into the queue. Then either Take or GiveUp is called, once.
func (r *Router) Queue(ctx context.Context, q *Request, b *Booking) (*Turn, error) {
	w, err := r.pickOrEnqueue(ctx, q, b)
	if err != nil {
		return nil, err
	}
	if w != nil {
		return &Turn{r, w}, nil
	}
	r.routed(q, b)
	return nil, nil
}

// Done is closed when the wait has ended.
func (t *Turn) Done() <-chan struct{} { return t.w.done }

// Take returns how the wait ended, as Acquire would; it waits for that.
func (t *Turn) Take() error {
	<-t.w.done
	if t.w.err == nil {
		t.r.routed(t.w.q, t.w.b)
	}
	return t.w.err
}

// GiveUp leaves the queue and returns the error that Acquire would for this cause. Who was
// served already gives the booking back.
func (t *Turn) GiveUp(cause error) error { return t.r.abandon(cause, t.w) }
