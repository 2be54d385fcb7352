package router

import (
	"context"
	"iter"
	"log/slog"
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/policy"
)

// A prefiller decides on the prefill legs of requests. It is another value of the Router's policy, over the replicas
// that prefill, so that these have an order, a rotation and an index of their own. It is built when the fleet has roles
// for the first time: what was reported of caches before that is not known to it.
type prefiller struct {
	router *Router
	build  func() (policy.Policy, error)
	policy atomic.Pointer[policy.Policy] // nil until it is built; written with the Router's mutex held
}

// show passes a change of the fleet to it. Called with the Router's mutex held.
func (f *prefiller) show(old, next *view, c policy.FleetChange) {
	if next.prefill != nil && f.policy.Load() == nil && f.build != nil {
		p, err := f.build()
		if err != nil { // the Router has one of this config
			f.build = nil
			slog.Warn("warmpath: requests are served whole: the policy cannot be built for prefill legs", "error", err)
			return
		}
		f.policy.Store(&p)
	}
	if p := f.policy.Load(); p != nil {
		notify(&p.Observer, old.prefilling(), next.prefilling(), c, false)
	}
}

// prefilling is the view of the replicas that prefill for others.
func (v *view) prefilling() *view {
	if v.prefill != nil {
		return v.prefill
	}
	return newView(v.router, v.epoch)
}

// prepare prepares a prefill leg. Where the prompt of the request is hashed, its hashes are used.
func (f *prefiller) prepare(ctx context.Context, q *policy.Request, x *legs, v *view) {
	r, p, leg := f.router, f.policy.Load(), &x.request
	if !r.gate.enter() {
		return
	}
	defer r.gate.leave()
	if leg.Prompt = q.Prompt; leg.Prompt.Hashed == nil {
		if h := r.PromptHashes(q); h != nil {
			leg.Prompt = policy.Prompt{Hashed: h}
		}
	}
	r.ready(ctx, p, leg, v)
	DropPrompt(leg)
}

// indexStats adds those of its index to the statistics of the Router's policy.
func (f *prefiller) indexStats(own policy.IndexStats) policy.IndexStats {
	if p := f.policy.Load(); p != nil {
		s := p.IndexStats()
		own.Bytes, own.Blocks, own.Evictions = own.Bytes+s.Bytes, own.Blocks+s.Blocks, own.Evictions+s.Evictions
		own.LiveEvictions, own.Refused = own.LiveEvictions+s.LiveEvictions, own.Refused+s.Refused
	}
	return own
}

func (f *prefiller) close() error {
	if p := f.policy.Load(); p != nil && p.Close != nil {
		return p.Close()
	}
	return nil
}

// observers are those of caches: the Router's and its own.
func (f *prefiller) observers() iter.Seq[*policy.Observer] {
	return func(yield func(*policy.Observer) bool) {
		for _, o := range f.router.observers {
			if !yield(o) {
				return
			}
		}
		if p := f.policy.Load(); p != nil {
			yield(&p.Observer)
		}
	}
}
