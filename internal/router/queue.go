package router

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
)

// headStart is what a level of priority is worth in the queue.
const headStart = 10 * time.Second

// A queue holds the requests of one Router that wait for room, and the timer for those that get room by time alone; see
// refusal.go. The Router's mutex guards it and is held while its methods run.
type queue struct {
	router  *Router
	waiters line
	any     line // of these, the ones that take any replica
	seq     uint64
	came    time.Time // when the last request came
	closed  bool
	waits   atomic.Bool // there are waiters, or the Router is closed: a release serves them. Read without the mutex

	marked time.Time // the end of the first mark, or earlier; zero = there is none
	alarm  time.Time // zero = not set
	stop   func()    // the alarm
}

// A waiter is a request in the queue. Its fields are guarded by the Router's mutex; done is closed once the outcome is
// set.
type waiter struct {
	q       *policy.Request
	b       *Reservation
	seq     uint64    // of the first pick of its request: the order in which they came
	since   time.Time // it waits
	due     time.Time // when its request came, less the head start of its priority
	behind  int
	stands  bool              // false until its backoff has passed
	wants   []*policy.Replica // that it takes; nil = any
	waiting bool
	err     error
	done    chan struct{}
}

// note notes whether releases concern any request. A waiter is counted before it looks at the books for the last time.
func (u *queue) note() { u.waits.Store(len(u.waiters) > 0 || u.closed) }

// number numbers a request by the first Reserve that may wait. Time does not go back from one to the next.
func (u *queue) number(s *state.Request, now time.Time) {
	u.seq++
	if now.After(u.came) {
		u.came = now
	}
	s.QueuedAt, s.Seq, s.Came = u.router.number, u.seq, u.came
}

// add puts a request into the queue, where it waits for no replica yet. Where the queue is full, it takes the place of
// one of a lower priority, if there is any behind it.
func (u *queue) add(q *policy.Request, b *Reservation) (*waiter, error) {
	s, now := part.OfRequest(q), u.router.opts.Now()
	w := &waiter{
		q: q, b: b, seq: s.Seq, since: now, due: s.Came.Add(-time.Duration(level(q.Priority)) * headStart),
		waiting: true, done: make(chan struct{}),
	}
	w.behind = u.waiters.place(w)
	if most := u.router.opts.MaxQueued; most >= 0 && len(u.waiters) >= most {
		full := &WaitError{Behind: w.behind, Longest: now.Sub(u.waiters[0].since), Cause: ErrQueueFull}
		out := u.last(w)
		if out == nil {
			return nil, full
		}
		full.Waited, full.Behind = now.Sub(out.since), out.behind
		u.settle(out, full)
	}
	u.waiters.insert(w)
	u.note()
	return w, nil
}

// last returns the waiter of a lower priority than w that is served last, if after w; else nil. As a
// rule that is the last of all.
func (u *queue) last(w *waiter) *waiter {
	for _, o := range slices.Backward(u.waiters) {
		if served(o, w) < 0 {
			return nil
		}
		if level(o.q.Priority) < level(w.q.Priority) {
			return o
		}
	}
	return nil
}

// A line is waiters in the order in which they are served where they want the same. To join it at the end and to leave
// it at the head is O(1); in between it is no more than to move pointers.
type line []*waiter

// place returns how many of the line are served before w, which need not stand in it.
func (l line) place(w *waiter) int {
	if n := len(l); n == 0 || served(l[n-1], w) < 0 {
		return n
	}
	n, _ := slices.BinarySearchFunc(l, w, served)
	return n
}

func (l *line) insert(w *waiter) { *l = slices.Insert(*l, l.place(w), w) }

// remove takes a waiter out that stands in the line. It moves those on the shorter side.
func (l *line) remove(w *waiter) {
	all, i := *l, 0
	if all[0] != w {
		i = l.place(w)
	}
	for all[i] != w { // a copy of its request may wait too
		i++
	}
	if i >= len(all)/2 {
		*l = slices.Delete(all, i, i+1)
		return
	}
	copy(all[1:], all[:i])
	all[0] = nil
	*l = all[1:]
}

// served is the order in which waiters are served where they want the same.
func served(a, b *waiter) int { return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.seq, b.seq)) }

// level is a priority as a number of head starts.
func level(priority int) int { return min(max(priority, -1), 1) }

// stand lets a waiter wait for what its last choice would wait for, or no longer for any.
func (u *queue) stand(w *waiter, on bool) {
	u.lines(w, (*line).remove)
	w.stands, w.wants = on, nil
	if on {
		w.wants = w.b.Decision.WaitFor
	}
	u.lines(w, (*line).insert)
}

// lines calls do for each line in which a waiter stands beside that of all.
func (u *queue) lines(w *waiter, do func(*line, *waiter)) {
	if w.stands && w.wants == nil {
		do(&u.any, w)
	}
	for _, rep := range w.wants {
		do(&liveOf(rep).waiters, w)
	}
}

// settle ends a wait.
func (u *queue) settle(w *waiter, err error) {
	u.stand(w, false)
	u.waiters.remove(w)
	w.waiting, w.err = false, err
	u.note()
	close(w.done)
}

// again lets a waiter choose once more: it is served, or sent away, or waits on in its old order.
func (u *queue) again(w *waiter) {
	err := u.router.choose(w.q, w.b, nil, time.Time{})
	if err == ErrFull {
		u.stand(w, true)
		return
	}
	if d := &w.b.Decision; err == nil {
		d.Queued = u.router.opts.Now().Sub(w.since)
		because(d, policy.ReasonQueued)
	}
	u.settle(w, err)
}

// room reports whether a replica that a waiter wants has room.
func (u *queue) room(w *waiter) bool {
	if part.OfRequest(w.q).Legs != nil {
		return true // it may want a replica that prefills: it chooses again
	}
	v := u.router.view.Load().whole
	return w.wants == nil && v.LeastLoaded(w.q) != nil || slices.ContainsFunc(w.wants, func(rep *policy.Replica) bool {
		return rep.Connected() && !rep.Full()
	})
}

// serve gives the room of one replica to the requests that wait for it, in their order. It looks at two heads: of those
// that want this replica, and of those that take any. One of them that is not served no longer wants it.
func (u *queue) serve(at *policy.Replica) {
	rep := u.router.view.Load().byID(at.ID)
	for range len(u.waiters) {
		if rep == nil || !rep.Connected() || rep.Full() {
			return
		}
		first := liveOf(rep).waiters
		if len(u.any) > 0 && !rep.Drains() && rep.Role != policy.RolePrefill && (len(first) == 0 || served(u.any[0], first[0]) < 0) {
			first = u.any
		}
		if len(first) == 0 {
			return
		}
		u.again(first[0])
	}
}

// requeue lets every request in the queue choose again, in the order they came, when
// the fleet or its connections have changed.
func (u *queue) requeue() {
	if len(u.waiters) == 0 {
		return
	}
	all := slices.Clone(u.waiters)
	for _, w := range all { // first, so that each joins its lines at the end
		u.stand(w, false)
	}
	for _, w := range all {
		u.again(w)
	}
	u.arm()
}

// arm sets the alarm for when, while a request waits, a replica may get room by time
// alone: at the end of the first mark, or at the next look at those that are not well.
func (u *queue) arm() {
	r := u.router
	var at time.Time
	if len(u.waiters) > 0 && !u.closed {
		at = u.marked
		if !r.outliers.AllHealthy() {
			due := r.outliers.Due()
			if soon := r.opts.Now().Add(time.Millisecond); due.Before(soon) {
				due = soon
			}
			if at.IsZero() || due.Before(at) {
				at = due
			}
		}
	}
	if at.Equal(u.alarm) {
		return
	}
	if !u.alarm.IsZero() {
		u.stop()
	}
	if u.alarm = at; !at.IsZero() {
		u.stop = r.opts.AfterFunc(max(at.Sub(r.opts.Now()), 0), u.ring)
	}
}

// ring is what the alarm calls, without the Router's mutex.
func (u *queue) ring() {
	r := u.router
	r.mu.Lock()
	defer r.mu.Unlock()
	u.alarm = time.Time{}
	if u.closed {
		return
	}
	if !r.outliers.AllHealthy() {
		r.outliers.Look(r.opts.Now())
	}
	if r.Health.stale() {
		r.Health.force()
	}
	u.tick()
	u.arm()
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
	if part.OfRequest(w.q).Legs != nil {
		legsOf(w.q).withdraw()
	}
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
