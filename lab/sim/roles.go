package sim

import (
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/lab/enginesim"
)

// legs are the two parts of a request that is split: one engine computes its prompt, another one its output.
type legs struct {
	stage   stage
	prefill router.Reservation  // that of the decode leg is the flight's own
	work    enginesim.Request   // the whole request
	held    *enginesim.Sequence // the prefill leg, which holds its KV until that has moved
}

// stage is how far a request that is split has come.
type stage uint8

const (
	whole stage = iota // it is not split
	prefilling
	decoding
)

// role is that of replica i.
func (r *run) role(i int) string {
	switch {
	case i < r.Prefill:
		return policy.RolePrefill
	case i < r.Prefill+r.Decode:
		return policy.RoleDecode
	}
	return ""
}

// prefill gives the prefill leg to its engine: the whole prompt, and one token of output.
func (r *run) prefill(f *flight, work enginesim.Request) {
	d, s := &f.legs.prefill.Decision, f.sample
	s.Replica, s.Reason = d.Replica.ID, d.Reason
	if !s.WarmUp {
		r.pairs++
	}
	f.legs.stage, f.legs.work = prefilling, work
	work.OutputTokens, work.Hold = 1, true
	r.submit(f, &f.legs.prefill, work)
}

// handOver ends the prefill leg and begins the other one, to whose engine the KV moves.
func (r *run) handOver(f *flight, seq *enginesim.Sequence) {
	res, s, l := seq.Result(), f.sample, &f.legs
	s.Cached, s.Computed = res.CachedTokens, res.ComputedTokens
	l.stage, l.held = decoding, seq
	r.moving++
	l.prefill.Release()
	f.router.Complete(&f.req, l.prefill.Decision, policy.Outcome{
		Sent: true, FirstMessage: res.TTFT(),
		Usage: policy.Usage{PromptTokens: s.Prompt, OutputTokens: res.OutputTokens, CachedTokens: s.Cached},
	})
	to := r.byID[f.reservation.Decision.Replica.ID].engine
	work := l.work
	work.Received, work.Transfer = work.PromptTokens, to.Transfer(s.Prompt)
	r.submit(f, &f.reservation, work)
	r.serve()
}

// free frees the KV of a prefill leg where it was computed: it has moved.
func (r *run) free(f *flight) {
	r.moving--
	m := r.byID[f.legs.prefill.Decision.Replica.ID]
	m.engine.Release(r.now, f.legs.held)
	m.due = due(m.engine)
}

// due is when the pass of an engine ends.
func due(e *enginesim.Engine) time.Duration {
	if at, busy := e.NextStep(); busy {
		return at
	}
	return never
}
