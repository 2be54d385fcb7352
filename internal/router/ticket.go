package router

import (
	"context"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
)

// A Ticket is a request's place in the queue, for a host that blocks no goroutine for it.
type Ticket struct {
	r *Router
	w *waiter
}

// Acquire picks and reserves as Pick does, and waits in the queue while every replica that
// the request may use is full. It returns ErrNotConnected, without waiting or from the
// queue, when nothing is connected that could ever serve it, ErrClosed likewise, and a
// *WaitError when the context ends first, or for ErrQueueFull: too many wait, or it made
// room for a request of higher priority. On an error b holds nothing.
func (r *Router) Acquire(ctx context.Context, q *policy.Request, b *Reservation) error {
	t, err := r.Queue(ctx, q, b)
	if t == nil {
		return err
	}
	return t.wait(ctx)
}

// AcquireAfter is Acquire for a request that a full replica refused: it waits in the queue, and may be served there
// once the backoff has passed. A backoff of 0 is Acquire.
func (r *Router) AcquireAfter(ctx context.Context, backoff time.Duration, q *policy.Request, b *Reservation) error {
	if backoff <= 0 {
		return r.Acquire(ctx, q, b)
	}
	t, err := r.enqueue(ctx, q, b, true)
	if err != nil {
		return err
	}
	stop := r.opts.AfterFunc(backoff, t.backedOff)
	defer stop()
	return t.wait(ctx)
}

// Queue is Acquire for a host that does not block: it reserves at once, and returns no Ticket,
// or puts the request into the queue. Then either Take or GiveUp is called, once.
func (r *Router) Queue(ctx context.Context, q *policy.Request, b *Reservation) (*Ticket, error) {
	t, err := r.enqueue(ctx, q, b, false)
	if t == nil && err == nil {
		r.routed(q, b)
	}
	return t, err
}

// enqueue reserves at once, or puts the request into the queue; one that was refused is only put there, where it
// waits for no replica until its backoff has passed.
func (r *Router) enqueue(ctx context.Context, q *policy.Request, b *Reservation, refused bool) (*Ticket, error) {
	r.view.Load().narrow(q)
	r.lockPrepared(ctx, q)
	defer r.mu.Unlock()
	u := &r.queue
	u.number(q)
	if refused {
		if u.closed {
			return nil, ErrClosed
		}
		w, err := u.add(q, b)
		if err != nil {
			return nil, err
		}
		return &Ticket{r, w}, nil
	}
	now := r.attend(q)
	u.tick()
	if err := r.choose(q, r.view.Load(), b, now); err != ErrFull {
		return nil, err
	}
	w, err := u.add(q, b)
	if err != nil {
		return nil, err
	}
	u.stand(w)
	if r.quick != nil {
		u.again(w) // a quick release may have made room before it saw the waiter
	}
	u.arm()
	return &Ticket{r, w}, nil
}

// Queued returns how many requests wait.
func (r *Router) Queued() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.queue.queued
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

// wait is Take, bounded by a context.
func (t *Ticket) wait(ctx context.Context) error {
	select {
	case <-t.w.done:
		return t.Take()
	case <-ctx.Done():
		return t.GiveUp(endOf(ctx))
	}
}

// GiveUp leaves the queue and returns the error that Acquire would for this cause. A request
// that was served already gives the reservation back.
func (t *Ticket) GiveUp(cause error) error {
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
func (t *Ticket) backedOff() {
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
