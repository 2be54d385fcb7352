package sim

import (
	"context"
	"slices"
	"time"

	"github.com/warmpath/warmpath/internal/lab/enginesim"
	"github.com/warmpath/warmpath/internal/router"
)

// waiting is a request in a client's queue.
type waiting struct {
	f       *flight
	work    enginesim.Request
	ticket  router.Ticket
	givesUp time.Duration
}

// enqueue lets a request wait that no replica has room for.
func (r *run) enqueue(f *flight, work enginesim.Request, ticket router.Ticket) {
	w := waiting{f: f, work: work, ticket: ticket, givesUp: never}
	if r.Patience > 0 {
		w.givesUp = f.sample.At + r.Patience
	}
	r.queue = append(r.queue, w)
}

// impatient is when the first gives up. All have the same patience, so that is the first that came.
func (r *run) impatient() time.Duration {
	if len(r.queue) == 0 {
		return never
	}
	return r.queue[0].givesUp
}

// giveUp lets the first in the queue go.
func (r *run) giveUp() {
	w := r.queue[0]
	r.queue = r.queue[1:]
	r.fail(w.f.sample, w.ticket.GiveUp(context.DeadlineExceeded))
	r.serve()
}

// serve sends those whose wait has ended. One that is refused after all makes room for another.
func (r *run) serve() {
	ended := func(w waiting) bool {
		select {
		case <-w.ticket.Done():
			return true
		default:
			return false
		}
	}
	for slices.ContainsFunc(r.queue, ended) {
		served := slices.DeleteFunc(slices.Clone(r.queue), func(w waiting) bool { return !ended(w) })
		r.queue = slices.DeleteFunc(r.queue, ended)
		for _, w := range served {
			if err := w.ticket.Take(); err != nil {
				r.fail(w.f.sample, err)
				continue
			}
			r.send(w.f, w.work)
		}
	}
}
