package router

import (
	"container/list"
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
	free    line // of these, the ones that take any replica
	queued  int
	seq     uint64
	marked  []mark // replicas that refused
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
	own     place   // in queue.waiting
	places  []place // elsewhere
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
	w.came = u.waiting.came(now, w.seq)
	w.due = w.came.Add(-time.Duration(level(q.Priority)-level(policy.PriorityNormal)) * u.opts.HeadStart)
	w.own = u.waiting.insert(w)
	w.behind = u.waiting.before(w)
	if err := u.admit(w); err != nil {
		return nil, err
	}
	return w, nil
}

// admit counts a waiter in if the queue has room for it, if need be in the place of
// one of a lower priority. What it refuses stands nowhere.
func (u *queue) admit(w *waiter) error {
	if u.opts.MaxQueued >= 0 && u.queued >= u.opts.MaxQueued {
		full := &WaitError{Behind: w.behind, Longest: w.since.Sub(u.waiting.since()), Cause: ErrQueueFull}
		out := u.waiting.last(w)
		if out == nil {
			w.own.leave()
			return full
		}
		full.Waited, full.Behind = w.since.Sub(out.since), out.behind
		u.settle(out, full)
	}
	u.queued++
	u.router.quick.hold()
	return nil
}

// stand puts a waiter where its last choice would wait.
func (u *queue) stand(w *waiter) {
	if w.b.Decision.WaitFor == nil {
		w.places = append(w.places, u.free.insert(w))
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
func (u *queue) settle(w *waiter, err error) {
	w.step()
	w.own.leave()
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
	all := u.waiting.all(make([]*waiter, 0, u.queued))
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
		u.again(w)
	}
	u.arm()
}

const levels = 3

// level is the index of a priority among the lists of a line, the lowest first.
func level(p policy.Priority) int {
	return int(min(max(p, policy.PriorityLow), policy.PriorityHigh) - policy.PriorityLow)
}

// A line is a queue of waiters: a list for each priority, in which they stand in
// the order in which they came. All is guarded by the Router's mutex.
type line struct{ levels [levels]list.List }

// head returns what is served next, or nil.
func (l *line) head() *waiter {
	var first *waiter
	for i := range l.levels {
		if e := l.levels[i].Front(); e != nil {
			first = earlier(first, e.Value.(*waiter))
		}
	}
	return first
}

// insert puts a waiter behind those of its priority that came before it. As a rule
// that is the end.
func (l *line) insert(w *waiter) place {
	in := &l.levels[level(w.q.Priority)]
	for e := in.Back(); e != nil; e = e.Prev() {
		if e.Value.(*waiter).seq <= w.seq {
			return place{in, in.InsertAfter(w, e)}
		}
	}
	return place{in, in.PushFront(w)}
}

// came is when a request came that starts to wait now: between those that came before
// it and after it, also where it was under way meanwhile, or the clock went back.
func (l *line) came(now time.Time, seq uint64) time.Time {
	for i := range l.levels {
		e := l.levels[i].Back()
		for ; e != nil && e.Value.(*waiter).seq > seq; e = e.Prev() {
			if after := e.Value.(*waiter).came; after.Before(now) {
				now = after
			}
		}
		if e != nil && e.Value.(*waiter).came.After(now) {
			now = e.Value.(*waiter).came
		}
	}
	return now
}

// before counts the waiters that are served before w: in each list those at its beginning. As a
// rule that are nearly all of w's level and below, and hardly any where w has a head
// start, so it is looked for from both ends.
func (l *line) before(w *waiter) (n int) {
	for i := range l.levels {
		n += leading(&l.levels[i], w)
	}
	return n
}

// leading counts the waiters of a list that are served before w.
func leading(in *list.List, w *waiter) int {
	first, last := in.Front(), in.Back()
	for i := range in.Len() {
		if !first.Value.(*waiter).before(w) {
			return i
		}
		if last.Value.(*waiter).before(w) {
			return in.Len() - i
		}
		first, last = first.Next(), last.Prev()
	}
	return in.Len()
}

// last returns the waiter of a lower priority than w that is served last, if after w; else nil.
func (l *line) last(w *waiter) *waiter {
	last := w
	for i := range level(w.q.Priority) {
		e := l.levels[i].Back()
		if e == nil {
			continue
		}
		if o := e.Value.(*waiter); last.before(o) {
			last = o
		}
	}
	if last == w {
		return nil
	}
	return last
}

// since is when the one that waits longest came; the zero time when none waits.
func (l *line) since() (t time.Time) {
	for i := range l.levels {
		if e := l.levels[i].Front(); e != nil {
			if s := e.Value.(*waiter).since; t.IsZero() || s.Before(t) {
				t = s
			}
		}
	}
	return t
}

// all appends every waiter of the line.
func (l *line) all(ws []*waiter) []*waiter {
	for i := range l.levels {
		for e := l.levels[i].Front(); e != nil; e = e.Next() {
			ws = append(ws, e.Value.(*waiter))
		}
	}
	return ws
}

// A place is where a waiter stands.
type place struct {
	in *list.List
	at *list.Element
}

func (p place) leave() { p.in.Remove(p.at) }

// before reports whether w is served before o where both want the same.
func (w *waiter) before(o *waiter) bool {
	if !w.due.Equal(o.due) {
		return w.due.Before(o.due)
	}
	return w.seq < o.seq
}

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
