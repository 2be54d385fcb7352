package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/lab/drive"
	"github.com/warmpath/warmpath/internal/lab/enginesim"
	"github.com/warmpath/warmpath/internal/lab/workload"
	"github.com/warmpath/warmpath/internal/router"
)

// flight is a request under way.
type flight struct {
	req         policy.Request
	reservation router.Reservation
	router      *router.Router
	sample      *drive.Sample
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
	f := &flight{router: r.client(q), sample: s}
	f.req.ID, f.req.Session, f.req.PromptTokens = q.ID, q.Session, q.PromptTokens
	if f.router.Uses()&policy.UsesPrompt != 0 {
		r.tokens = q.AppendTokens(r.tokens[:0])
		f.req.SetPrompt(policy.Prompt{Tokens: r.tokens})
	}
	s.At, s.WarmUp = q.At, q.At < r.WarmUp
	s.Prompt = q.PromptTokens
	work := r.of(i)
	if r.exact {
		r.subscribe(f.router, work.Hashes)
	}
	r.poll(ctx, f)
	var ticket router.Ticket
	err := f.router.Reserve(ctx, &f.req, &f.reservation, router.How{Ticket: &ticket})
	router.DropPrompt(&f.req)
	switch err {
	case nil:
		r.submit(f, work)
	case router.ErrQueued:
		r.enqueue(f, work, ticket)
	default:
		r.fail(s, err)
	}
}

// submit gives a request to the engine that was picked.
func (r *run) submit(f *flight, work enginesim.Request) {
	d, s := &f.reservation.Decision, f.sample
	s.Waited = r.now - s.At
	s.Replica, s.Reason = d.Replica.ID, d.Reason
	m := r.byID[d.Replica.ID]
	e := m.engine
	if !s.WarmUp && r.slow == 0 {
		r.observe(m, &work)
	}
	work.Data = f
	if _, err := e.Submit(r.now, work); err != nil {
		f.reservation.Release()
		f.router.Complete(&f.req, *d, policy.Outcome{Err: err, Sent: true, Usage: policy.NoUsage})
		r.fail(s, err)
		r.serve()
		return
	}
	m.due, _ = e.NextStep()
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
		if ev.Index == 0 {
			f.reservation.PrefillDone()
		}
		if ev.Done {
			if err := r.end(f, ev.Seq); err != nil {
				return err
			}
		}
	}
	next, busy := e.NextStep()
	if !busy {
		next = never
	}
	m.due = next
	return nil
}

// end closes the books on a request.
func (r *run) end(f *flight, seq *enginesim.Sequence) error {
	res, s := seq.Result(), f.sample
	if s.Latency > 0 {
		return fmt.Errorf("sim: request %s ended twice", f.req.ID)
	}
	s.TTFT, s.TPOT, s.Latency = s.Waited+res.TTFT(), res.TPOT(), s.Waited+res.End-res.Arrival
	s.Cached, s.Computed, s.Output = res.CachedTokens, res.ComputedTokens, res.OutputTokens
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
