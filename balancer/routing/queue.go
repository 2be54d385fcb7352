package routing

import (
	"cmp"
	"container/list"
	"context"
	"slices"
	"time"
)

// fifo is a queue of waiters, first come first served.
type fifo struct{ list.List }

func (f *fifo) head() *waiter {
	if e := f.Front(); e != nil {
		return e.Value.(*waiter)
	}
	return nil
}

// A waiter is a request in the queue. It stands in the fifo of each replica
// that it would take, or in the Router's own when any will do. Its fields are
// guarded by the Router's mutex; done is closed once the outcome is set.
type waiter struct {
	q       *Request
	b       *Booking
	seq     uint64
	since   time.Time
	behind  int
	places  []place
	waiting bool
	err     error
	done    chan struct{}
}

type place struct {
	in *fifo
	at *list.Element
}

// Acquire picks and books as Pick does, and waits while every replica that the
// request may use is full. It returns ErrNotConnected, without waiting, when
// nothing is connected that could ever serve it, ErrQueueFull when too many
// wait, and a *WaitError when the context ends first.
func (r *Router) Acquire(ctx context.Context, q *Request, b *Booking) error {
	w, err := r.pickOrEnqueue(ctx, q, b)
	if err != nil {
		return err
	}
	if w != nil {
		if err := r.await(ctx, w); err != nil {
			return err
		}
	}
	r.routed(q, b)
	return nil
}

// pickOrEnqueue books at once, or returns the waiter it put into the queue.
func (r *Router) pickOrEnqueue(ctx context.Context, q *Request, b *Booking) (*waiter, error) {
	v := r.lockPrepared(ctx, q)
	defer r.mu.Unlock()
	d, err := r.choose(q, v)
	if err == nil {
		r.book(q, b, d)
		return nil, nil
	}
	if err != ErrFull {
		return nil, err
	}
	if r.opts.MaxQueued >= 0 && r.queued >= r.opts.MaxQueued {
		return nil, ErrQueueFull
	}
	r.seq++
	w := &waiter{q: q, b: b, seq: r.seq, since: r.opts.Now(), behind: r.queued, done: make(chan struct{})}
	r.enqueue(w, d)
	return w, nil
}

func (r *Router) await(ctx context.Context, w *waiter) error {
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
	}
	r.mu.Lock()
	if w.waiting {
		r.dequeue(w)
		waited := r.opts.Now().Sub(w.since)
		r.mu.Unlock()
		return &WaitError{Waited: waited, Behind: w.behind, Cause: context.Cause(ctx)}
	}
	r.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	w.b.Release() // served in the same moment: the next in the queue takes it
	return &WaitError{Waited: w.b.Decision.Queued, Behind: w.behind, Cause: context.Cause(ctx)}
}

// Queued returns how many requests wait.
func (r *Router) Queued() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.queued
}

func (r *Router) enqueue(w *waiter, d Decision) {
	w.waiting = true
	r.queued++
	if d.WaitFor == nil {
		w.places = append(w.places, place{&r.anyone, r.anyone.PushBack(w)})
		return
	}
	for _, rep := range d.WaitFor {
		f := &rep.live.waiters
		w.places = append(w.places, place{f, f.PushBack(w)})
	}
}

func (r *Router) dequeue(w *waiter) {
	for _, p := range w.places {
		p.in.Remove(p.at)
	}
	w.places = w.places[:0]
	w.waiting = false
	r.queued--
}

// settle ends a wait: with a booking when err is nil.
func (r *Router) settle(w *waiter, d Decision, err error) {
	r.dequeue(w)
	w.err = err
	if err == nil {
		d.Queued = r.opts.Now().Sub(w.since)
		d.Rule, d.Reason = d.Reason, ReasonQueued
		r.book(w.q, w.b, d)
	}
	close(w.done)
}

// serve gives the room of one replica to those who wait for it. It looks at two
// heads: of those who want this replica, and of those who take any.
func (r *Router) serve(id string) {
	rep := r.view.Load().ByID(id)
	if rep == nil {
		return
	}
	for r.queued > 0 && rep.Connected() && !rep.Full() {
		first, second := rep.live.waiters.head(), r.anyone.head()
		if first == nil || (second != nil && second.seq < first.seq) {
			first, second = second, first
		}
		if !r.offer(first) && !r.offer(second) {
			return
		}
	}
}

// offer lets a waiter choose again and reports whether it was served.
func (r *Router) offer(w *waiter) bool {
	if w == nil {
		return false
	}
	d, err := r.choose(w.q, r.view.Load())
	if err != nil {
		return false
	}
	r.settle(w, d, nil)
	return true
}

// requeue lets everybody in the queue choose again, in the order they came, when
// the fleet or its connections have changed.
func (r *Router) requeue() {
	if r.queued == 0 {
		return
	}
	v := r.view.Load()
	for _, w := range r.waiters(v) {
		d, err := r.choose(w.q, v)
		switch err {
		case nil:
			r.settle(w, d, nil)
		case ErrFull:
			r.dequeue(w)
			r.enqueue(w, d)
		default:
			r.settle(w, d, err)
		}
	}
}

// waiters returns everybody in the queue, oldest first, also those who wait for
// replicas that just left.
func (r *Router) waiters(v *View) []*waiter {
	all := make([]*waiter, 0, r.queued)
	collect := func(f *fifo) {
		for e := f.Front(); e != nil; e = e.Next() {
			all = append(all, e.Value.(*waiter))
		}
	}
	collect(&r.anyone)
	for _, rep := range v.Replicas() {
		collect(&rep.live.waiters)
	}
	for _, l := range r.leaving {
		collect(&l.waiters)
	}
	slices.SortFunc(all, func(a, b *waiter) int { return cmp.Compare(a.seq, b.seq) })
	return slices.Compact(all)
}
