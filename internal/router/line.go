package router

import (
	"container/list"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
)

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
