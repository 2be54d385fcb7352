package router

import (
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
