package routing

import (
	"cmp"
	"container/list"
	"context"
	"slices"
	"time"
)

// fifo is a queue of waiters in the order in which they came.
type fifo struct{ list.List }

func (f *fifo) head() *waiter {
	if e := f.Front(); e != nil {
		return e.Value.(*waiter)
	}
	return nil
}

// insert puts a waiter behind those who came before it. As a rule that is the end.
func (f *fifo) insert(w *waiter) *list.Element {
	for e := f.Back(); e != nil; e = e.Prev() {
		if e.Value.(*waiter).seq <= w.seq {
			return f.InsertAfter(w, e)
		}
	}
	return f.PushFront(w)
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
	err := r.choose(q, v, b)
	if err != ErrFull {
		return nil, err
	}
	if r.opts.MaxQueued >= 0 && r.queued >= r.opts.MaxQueued {
		return nil, ErrQueueFull
	}
	r.seq++
	w := &waiter{
		q: q, b: b, seq: r.seq, since: r.opts.Now(), behind: r.queued,
		waiting: true, done: make(chan struct{}),
	}
	r.queued++
	r.hold()
	r.stand(w)
	if r.quick != nil {
		r.again(w, v) // a quick release may have made room before it saw the waiter
	}
	return w, nil
}

func (r *Router) await(ctx context.Context, w *waiter) error {
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return r.abandon(ctx, w)
	}
}

// abandon ends the wait of a call whose context has ended.
func (r *Router) abandon(ctx context.Context, w *waiter) error {
	r.mu.Lock()
	if w.waiting {
		waited := r.opts.Now().Sub(w.since)
		r.settle(w, nil)
		r.mu.Unlock()
		return &WaitError{Waited: waited, Behind: w.behind, Cause: endOf(ctx)}
	}
	r.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	w.b.Release() // served in the same moment: the next in the queue takes it
	return &WaitError{Waited: w.b.Decision.Queued, Behind: w.behind, Cause: endOf(ctx)}
}

// Queued returns how many requests wait.
func (r *Router) Queued() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.queued
}

// stand puts a waiter where its last choice would wait.
func (r *Router) stand(w *waiter) {
	if w.b.Decision.WaitFor == nil {
		w.places = append(w.places, place{&r.anyone, r.anyone.insert(w)})
		return
	}
	for _, rep := range w.b.Decision.WaitFor {
		f := &rep.live.waiters
		w.places = append(w.places, place{f, f.insert(w)})
	}
}

// step takes a waiter from where it stands.
func (w *waiter) step() {
	for _, p := range w.places {
		p.in.Remove(p.at)
	}
	w.places = w.places[:0]
}

// settle ends a wait.
func (r *Router) settle(w *waiter, err error) {
	w.step()
	w.waiting = false
	w.err = err
	r.queued--
	r.hold()
	close(w.done)
}

// again lets a waiter choose once more: it is served, or sent away, or stands
// where it would wait now, in its old order.
func (r *Router) again(w *waiter, v *View) {
	err := r.choose(w.q, v, w.b)
	if err == ErrFull {
		w.step()
		r.stand(w)
		return
	}
	if d := &w.b.Decision; err == nil {
		d.Queued = r.opts.Now().Sub(w.since)
		d.because(ReasonQueued)
	}
	r.settle(w, err)
}

// released does what the end of a booking means to others. Called with mu held.
func (r *Router) released(at *Replica) {
	if r.queued > 0 {
		r.serve(r.view.Load(), at.ID)
	}
	r.forget(at)
}

// serve gives the room of one replica to those who wait for it. It looks at two
// heads: of those who want this replica, and of those who take any. One of them
// that is not served no longer wants it and has gone to stand elsewhere.
func (r *Router) serve(v *View, id string) {
	rep := v.ByID(id)
	if rep == nil || rep.Draining {
		return
	}
	for range r.queued {
		if !rep.Connected() || rep.Full() {
			return
		}
		w := rep.live.waiters.head()
		if any := r.anyone.head(); w == nil || (any != nil && any.seq < w.seq) {
			w = any
		}
		if w == nil {
			return
		}
		r.again(w, v)
	}
}

// requeue lets everybody in the queue choose again, in the order they came, when
// the fleet or its connections have changed.
func (r *Router) requeue(v *View) {
	if r.queued == 0 {
		return
	}
	all := r.waiters(v)
	for _, w := range all {
		w.step()
	}
	for _, w := range all {
		r.again(w, v)
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
