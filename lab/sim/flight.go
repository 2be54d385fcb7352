package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/lab/drive"
	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/workload"
)

// flight is a request under way.
type flight struct {
	req         policy.Request
	reservation router.Reservation
	router      *router.Router
	sample      *drive.Sample
	legs        legs
}

// client is the Router that a request comes to.
func (r *run) client(q *workload.Request) *router.Router {
	n := uint64(r.draw.IntN(len(r.routers))) // drawn in any case: every request costs one draw
	if r.Affinity && q.Session != "" {
		n = xxh3.HashStringSeed(q.Session, r.Seed) % uint64(len(r.routers))
	}
	return r.routers[n]
}

// arrive routes a request and gives it to its engine.
func (r *run) arrive(ctx context.Context, i int) {
	q, s := &r.rs[i], &r.samples[i]
	if r.warmKV == nil && q.At >= r.WarmUp {
		r.warmKV = r.activeKV()
	}
	if r.warmKV != nil && r.slow == 0 && i%max(len(r.rs)/looks, 1) == 0 {
		r.lookAtEnded(i)
	}
	f := &flight{router: r.client(q), sample: s}
	f.req.ID, f.req.Session, f.req.PromptTokens = q.ID, q.Session, q.PromptTokens
	f.req.SetParent(q.Parent)
	if f.router.Uses()&policy.UsesPrompt != 0 {
		r.tokens = q.AppendTokens(r.tokens[:0])
		f.req.SetPrompt(policy.Prompt{Tokens: r.tokens})
	}
	s.At, s.WarmUp, s.Session = r.now, q.At < r.WarmUp, q.Session
	s.Prompt = q.PromptTokens
	work := r.of(i)
	if r.exact {
		r.subscribe(f.router, work.Hashes)
	}
	if r.poll(ctx, f) {
		defer f.router.Load.Asked()
	}
	var ticket router.Ticket
	how := router.How{Ticket: &ticket}
	if r.Prefill+r.Decode > 0 {
		how.Legs = &router.Legs{Prefill: &f.legs.prefill}
	}
	err := f.router.Reserve(ctx, &f.req, &f.reservation, how)
	router.DropPrompt(&f.req)
	switch err {
	case nil:
		r.send(f, work)
	case router.ErrQueued:
		r.enqueue(f, work, ticket)
	default:
		r.fail(s, err)
	}
}

// send gives a request to the engine that was picked, or its prefill leg.
func (r *run) send(f *flight, work enginesim.Request) {
	s := f.sample
	s.Waited = r.now - s.At
	if f.legs.prefill.Decision.Replica != nil {
		r.prefill(f, work)
		return
	}
	d := &f.reservation.Decision
	s.Replica, s.Reason = d.Replica.ID, d.Reason
	if m := r.byID[d.Replica.ID]; !s.WarmUp && r.slow == 0 {
		r.observe(m, &work)
	}
	r.submit(f, &f.reservation, work)
}

// submit gives an engine a request, or a leg of it.
func (r *run) submit(f *flight, b *router.Reservation, work enginesim.Request) {
	m := r.byID[b.Decision.Replica.ID]
	work.Data = f
	if _, err := m.engine.Submit(r.now, work); err != nil {
		r.giveBack(f, err)
		return
	}
	m.due = due(m.engine)
}

// giveBack ends a request that an engine refuses.
func (r *run) giveBack(f *flight, err error) {
	failed := policy.Outcome{Err: err, Sent: true, Usage: policy.NoUsage}
	switch f.legs.stage {
	case prefilling:
		f.legs.prefill.Release()
		f.router.Complete(&f.req, f.legs.prefill.Decision, failed)
	case decoding:
		r.free(f)
	}
	f.reservation.Release()
	f.router.Complete(&f.req, f.reservation.Decision, failed)
	r.fail(f.sample, err)
	r.serve()
}

func (r *run) fail(s *drive.Sample, err error) {
	s.Err = err
	r.ended++
	r.failed++
}

// step ends a pass of an engine.
func (r *run) step(at time.Duration, m *machine) error {
	r.now = at
	e := m.engine
	for _, ev := range e.Step(at) {
		if ev.Index > 0 && !ev.Done {
			continue
		}
		f := ev.Seq.Request().Data.(*flight)
		switch {
		case ev.Index < 0:
			r.free(f)
			continue
		case f.legs.stage == prefilling:
			r.handOver(f, ev.Seq)
			continue
		}
		if ev.Index == 0 {
			f.reservation.PrefillDone()
		}
		if ev.Done {
			if err := r.end(f, ev.Seq); err != nil {
				return err
			}
		}
	}
	m.due = due(e)
	return nil
}

// end closes the books on a request.
func (r *run) end(f *flight, seq *enginesim.Sequence) error {
	res, s := seq.Result(), f.sample
	if s.Latency > 0 {
		return fmt.Errorf("sim: request %s ended twice", f.req.ID)
	}
	s.TTFT, s.TPOT, s.Latency = res.FirstToken-s.At, res.TPOT(), res.End-s.At
	s.Output = res.OutputTokens
	if f.legs.stage == whole {
		s.Cached, s.Computed = res.CachedTokens, res.ComputedTokens
	}
	r.ended++
	if !s.WarmUp {
		r.preempts += res.Preemptions
		if r.slow > 0 && s.Prompt <= r.longest && !r.Targets.Good(s.TTFT, s.TPOT) {
			if r.slow--; r.slow == 0 {
				return errSlow
			}
		}
	}
	f.reservation.Release()
	f.router.Complete(&f.req, f.reservation.Decision, policy.Outcome{
		Sent: true, FirstMessage: res.TTFT(),
		Usage: policy.Usage{PromptTokens: s.Prompt, OutputTokens: s.Output, CachedTokens: s.Cached},
	})
	r.serve()
	return nil
}

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
