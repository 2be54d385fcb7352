package router

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
)

// A queue holds the requests of one Router that wait for room, and the marks of replicas that refused; see refusal.go.
// The Router's mutex guards it and is held while its methods run.
type queue struct {
	waiting line // every request in the queue
	arrived line // the same, in the order in which they came
	free    line // of these, the ones that take any replica
	queued  int
	seq     uint64
	marked  []*policy.Replica // that refused
	alarm   alarm
	closed  bool

	opts     *Options
	outliers *outlier.Detector
	router   *Router
}

// A waiter is a request in the queue. It stands in the line of all, and in
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
	places  []*line // beside queue.waiting and queue.arrived
	waiting bool
	err     error
	done    chan struct{}
}

// number numbers the requests of a Router by the first Reserve that may wait.
func (u *queue) number(q *policy.Request) {
	if s := q.State(); s.QueuedAt != any(u) {
		u.seq++
		s.QueuedAt, s.Seq = u, u.seq
	}
}

// add puts a request into the queue, where it waits for no replica yet.
func (u *queue) add(q *policy.Request, b *Reservation) (*waiter, error) {
	now := u.opts.Now()
	w := &waiter{q: q, b: b, seq: q.State().Seq, since: now, waiting: true, done: make(chan struct{})}
	w.came = u.came(w)
	w.due = w.came.Add(-time.Duration(level(q.Priority)) * u.opts.HeadStart)
	w.behind = u.waiting.before(w)
	if err := u.admit(w); err != nil {
		return nil, err
	}
	return w, nil
}

// admit puts a waiter into the queue if that has room for it, if need be in the place of
// one of a lower priority.
func (u *queue) admit(w *waiter) error {
	if u.opts.MaxQueued >= 0 && u.queued >= u.opts.MaxQueued {
		full := &WaitError{Behind: w.behind, Longest: w.since.Sub(u.arrived.head().since), Cause: ErrQueueFull}
		out := u.last(w)
		if out == nil {
			return full
		}
		full.Waited, full.Behind = w.since.Sub(out.since), out.behind
		u.settle(out, full)
	}
	u.waiting.insert(w)
	u.arrived.insert(w)
	u.queued++
	u.router.quick.hold()
	return nil
}

// stand puts a waiter where its last choice would wait.
func (u *queue) stand(w *waiter) {
	for _, rep := range w.b.Decision.WaitFor {
		w.places = append(w.places, &liveOf(rep).waiters)
	}
	if w.b.Decision.WaitFor == nil {
		w.places = append(w.places, &u.free)
	}
	for _, l := range w.places {
		l.insert(w)
	}
}

// step takes a waiter from where it stands, but for the lines of all.
func (w *waiter) step() {
	for _, l := range w.places {
		l.remove(w)
	}
	w.places = w.places[:0]
}

// settle ends a wait.
func (u *queue) settle(w *waiter, err error) {
	w.step()
	u.waiting.remove(w)
	u.arrived.remove(w)
	w.waiting = false
	w.err = err
	u.queued--
	u.router.quick.hold()
	close(w.done)
}

// again lets a waiter choose once more: it is served, or sent away, or stands
// where it would wait now, in its old order.
func (u *queue) again(w *waiter) {
	err := u.router.choose(w.q, u.router.view.Load(), w.b, time.Time{})
	if err == ErrFull {
		w.step()
		u.stand(w)
		return
	}
	if d := &w.b.Decision; err == nil {
		d.Queued = u.opts.Now().Sub(w.since)
		because(d, policy.ReasonQueued)
	}
	u.settle(w, err)
}

// serve gives the room of one replica to the requests that wait for it. It looks at two
// heads: of those that want this replica, and of those that take any. One of them
// that is not served no longer wants it and has gone to stand elsewhere.
func (u *queue) serve(id string) {
	rep := u.router.view.Load().ByID(id)
	if rep == nil {
		return
	}
	for range u.queued {
		if !rep.Connected() || rep.Full() {
			return
		}
		w := liveOf(rep).waiters.head()
		if any := u.free.head(); any != nil && !rep.Drains() {
			w = earlier(w, any)
		}
		if w == nil {
			return
		}
		u.again(w)
	}
}

// requeue lets every request in the queue choose again, in the order they came, when
// the fleet or its connections have changed.
func (u *queue) requeue() {
	if u.queued == 0 {
		return
	}
	all := slices.Clone(u.waiting.waiters)
	for _, w := range all {
		w.step()
	}
	for _, w := range all {
		u.again(w)
	}
	u.arm()
}

// level is a priority as a number of head starts.
func level(p policy.Priority) int { return int(min(max(p, policy.PriorityLow), policy.PriorityHigh)) }

// A line is a queue of waiters in an order of their own. It is a sorted slice: to join it at the end and to leave it at the
// head costs nothing, and in between no more than to move pointers. All is guarded by the Router's mutex.
type line struct {
	waiters []*waiter
	order   func(a, b *waiter) int
}

// served is the order in which waiters are served where they want the same.
func served(a, b *waiter) int { return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.seq, b.seq)) }

// arrived is the order in which the requests of waiters came.
func arrived(a, b *waiter) int { return cmp.Compare(a.seq, b.seq) }

// head returns the first of the line, or nil.
func (l *line) head() *waiter {
	if len(l.waiters) == 0 {
		return nil
	}
	return l.waiters[0]
}

// before counts the waiters of the line that come before w, which need not stand in it.
func (l *line) before(w *waiter) int {
	n, _ := slices.BinarySearchFunc(l.waiters, w, l.order)
	return n
}

func (l *line) insert(w *waiter) { l.waiters = slices.Insert(l.waiters, l.before(w), w) }

// remove takes a waiter out that stands in the line. It moves those on the shorter side.
func (l *line) remove(w *waiter) {
	i := l.before(w)
	for l.waiters[i] != w { // a copy of its request may wait too
		i++
	}
	if i > len(l.waiters)/2 {
		l.waiters = slices.Delete(l.waiters, i, i+1)
		return
	}
	copy(l.waiters[1:], l.waiters[:i])
	l.waiters[0] = nil
	l.waiters = l.waiters[1:]
}

// came is when the request of w came, which starts to wait now: between those that came before
// it and after it, also where it was under way meanwhile, or the clock went back.
func (u *queue) came(w *waiter) time.Time {
	came, all, i := w.since, u.arrived.waiters, u.arrived.before(w)
	if i < len(all) && all[i].came.Before(came) {
		came = all[i].came
	}
	if i > 0 {
		came = later(came, all[i-1].came)
	}
	return came
}

// last returns the waiter of a lower priority than w that is served last, if after w; else nil. As a
// rule that is the last of all.
func (u *queue) last(w *waiter) *waiter {
	for _, o := range slices.Backward(u.waiting.waiters) {
		if o.before(w) {
			return nil
		}
		if level(o.q.Priority) < level(w.q.Priority) {
			return o
		}
	}
	return nil
}

// before reports whether w is served before o where both want the same.
func (w *waiter) before(o *waiter) bool { return served(w, o) < 0 }

// earlier returns what is served first; a may be nil.
func earlier(a, b *waiter) *waiter {
	if a == nil || b.before(a) {
		return b
	}
	return a
}

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
