package router

import (
	"context"
	"slices"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
)

// A waiter is a request in the queue. It stands in the Router's line of all, and in
// the line of each replica that it would take, or in that of those that take any.
// Its fields are guarded by the Router's mutex; done is closed once the outcome is set.
type waiter struct {
	q       *policy.Request
	b       *Reservation
	seq     uint64    // of the first pick of its request: the order in which they came
	since   time.Time // it waits
	came    time.Time // its request, as far as is known
	due     time.Time // came, less the head start of its priority
	behind  int
	own     place   // in Router.waiting
	places  []place // elsewhere
	waiting bool
	err     error
	done    chan struct{}
}

// Acquire picks and reserves as Pick does, and waits in the queue while every replica that
// the request may use is full. It returns ErrNotConnected, without waiting or from the
// queue, when nothing is connected that could ever serve it, ErrClosed likewise, and a
// *WaitError when the context ends first, or for ErrQueueFull: too many wait, or it made
// room for a request of higher priority. On an error b holds nothing.
func (r *Router) Acquire(ctx context.Context, q *policy.Request, b *Reservation) error {
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

// AcquireAfter is Acquire for a request that a full replica refused: it waits in the queue, and may be served there
// once the backoff has passed. A backoff of 0 is Acquire.
func (r *Router) AcquireAfter(ctx context.Context, backoff time.Duration, q *policy.Request, b *Reservation) error {
	if backoff <= 0 {
		return r.Acquire(ctx, q, b)
	}
	w, err := r.enqueue(ctx, q, b)
	if err != nil {
		return err
	}
	stop := r.opts.AfterFunc(backoff, func() { r.backedOff(w) })
	err = r.await(ctx, w)
	stop()
	if err == nil {
		r.routed(q, b)
	}
	return err
}

// enqueue puts a request into the queue where it waits for no replica.
func (r *Router) enqueue(ctx context.Context, q *policy.Request, b *Reservation) (*waiter, error) {
	r.view.Load().narrow(q)
	r.lockPrepared(ctx, q)
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	r.came(q)
	w := r.newWaiter(q, b)
	if err := r.admit(w); err != nil {
		return nil, err
	}
	return w, nil
}

// backedOff lets a request choose whose backoff has passed.
func (r *Router) backedOff(w *waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !w.waiting {
		return
	}
	v := r.view.Load()
	r.tick(v)
	if w.waiting { // a mark that has ended may have let it choose
		r.again(w, v)
	}
	r.arm()
}

// pickOrEnqueue reserves at once, or returns the waiter it put into the queue.
func (r *Router) pickOrEnqueue(ctx context.Context, q *policy.Request, b *Reservation) (*waiter, error) {
	r.view.Load().narrow(q)
	r.lockPrepared(ctx, q)
	defer r.mu.Unlock()
	r.came(q)
	now := r.attend(q)
	v := r.view.Load()
	r.tick(v)
	err := r.choose(q, v, b, now)
	if err != ErrFull {
		return nil, err
	}
	w := r.newWaiter(q, b)
	if err := r.admit(w); err != nil {
		return nil, err
	}
	r.stand(w)
	if r.quick != nil {
		r.again(w, v) // a quick release may have made room before it saw the waiter
	}
	r.arm()
	return w, nil
}

// came numbers the requests of a Router by their first Acquire.
func (r *Router) came(q *policy.Request) {
	if q.State().QueuedAt != any(r) {
		r.seq++
		q.State().QueuedAt, q.State().Seq = r, r.seq
	}
}

func (r *Router) newWaiter(q *policy.Request, b *Reservation) *waiter {
	now := r.opts.Now()
	w := &waiter{q: q, b: b, seq: q.State().Seq, since: now, waiting: true, done: make(chan struct{})}
	w.came = r.waiting.came(now, w.seq)
	w.due = w.came.Add(-time.Duration(level(q.Priority)-level(policy.PriorityNormal)) * r.opts.HeadStart)
	w.own = r.waiting.insert(w)
	return w
}

// admit counts a waiter in if the queue has room for it, if need be in the place of
// one of a lower priority. What it refuses stands nowhere.
func (r *Router) admit(w *waiter) error {
	w.behind = r.waiting.before(w)
	if r.opts.MaxQueued >= 0 && r.queued >= r.opts.MaxQueued {
		full := &WaitError{Behind: w.behind, Longest: w.since.Sub(r.waiting.since()), Cause: ErrQueueFull}
		out := r.waiting.last(w)
		if out == nil {
			w.own.leave()
			return full
		}
		full.Waited, full.Behind = w.since.Sub(out.since), out.behind
		r.settle(out, full)
	}
	r.queued++
	r.hold()
	return nil
}

func (r *Router) await(ctx context.Context, w *waiter) error {
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return r.abandon(endOf(ctx), w)
	}
}

// abandon ends the wait of a call that is over for a cause.
func (r *Router) abandon(cause error, w *waiter) error {
	r.mu.Lock()
	if w.waiting {
		waited := r.opts.Now().Sub(w.since)
		r.settle(w, nil)
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

// Queued returns how many requests wait.
func (r *Router) Queued() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.queued
}

// stand puts a waiter where its last choice would wait.
func (r *Router) stand(w *waiter) {
	if w.b.Decision.WaitFor == nil {
		w.places = append(w.places, r.free.insert(w))
		return
	}
	for _, rep := range w.b.Decision.WaitFor {
		w.places = append(w.places, liveOf(rep).waiters.insert(w))
	}
}

// step takes a waiter from where it stands, but for the line of all.
func (w *waiter) step() {
	for _, p := range w.places {
		p.leave()
	}
	w.places = w.places[:0]
}

// settle ends a wait.
func (r *Router) settle(w *waiter, err error) {
	w.step()
	w.own.leave()
	w.waiting = false
	w.err = err
	r.queued--
	r.hold()
	close(w.done)
}

// again lets a waiter choose once more: it is served, or sent away, or stands
// where it would wait now, in its old order.
func (r *Router) again(w *waiter, v *view) {
	err := r.choose(w.q, v, w.b, time.Time{})
	if err == ErrFull {
		w.step()
		r.stand(w)
		return
	}
	if d := &w.b.Decision; err == nil {
		d.Queued = r.opts.Now().Sub(w.since)
		because(d, policy.ReasonQueued)
	}
	r.settle(w, err)
}

// released does what the end of a reservation means to others. Called with mu held.
func (r *Router) released(at *policy.Replica) {
	if r.queued > 0 {
		r.serve(r.view.Load(), at.ID)
	}
	r.forget(at)
}

// serve gives the room of one replica to the requests that wait for it. It looks at two
// heads: of those that want this replica, and of those that take any. One of them
// that is not served no longer wants it and has gone to stand elsewhere.
func (r *Router) serve(v *view, id string) {
	rep := v.ByID(id)
	if rep == nil {
		return
	}
	for range r.queued {
		if !rep.Connected() || rep.Full() {
			return
		}
		w := liveOf(rep).waiters.head()
		if any := r.free.head(); any != nil && !rep.Drains() {
			w = earlier(w, any)
		}
		if w == nil {
			return
		}
		r.again(w, v)
	}
}

// requeue lets every request in the queue choose again, in the order they came, when
// the fleet or its connections have changed.
func (r *Router) requeue(v *view) {
	if r.queued == 0 {
		return
	}
	all := r.waiting.all(make([]*waiter, 0, r.queued))
	slices.SortFunc(all, func(a, b *waiter) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
	for _, w := range all {
		w.step()
	}
	for _, w := range all {
		r.again(w, v)
	}
	r.arm()
}
