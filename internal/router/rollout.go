package router

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
)

// A Rollout is how much of the requests the policy decides. What it does not, Options.Plain does.
type Rollout struct {
	router     *Router
	percentage atomic.Pointer[policy.Limit] // as Adoption has it; nil = the policy decides for all
}

// Set puts a percentage into force, nil = 100, on picks that begin. The state of the policy stays. Off is the kill
// switch: neither the policy nor its shadow is called, but for the ends of what they observed before.
func (o *Rollout) Set(percentage *policy.Limit) error {
	partial := percentage != nil && *percentage < 100
	if partial && o.router.opts.Plain.Choose == nil {
		return errors.New("router: a Rollout needs Options.Plain")
	}
	if !partial {
		percentage = nil
	}
	o.percentage.Store(percentage)
	return nil
}

// off reports whether the kill switch is on.
func (o *Rollout) off() bool {
	p := o.percentage.Load()
	return p != nil && *p == policy.Off
}

// Decides reports whether the policy decides for a request, and not Options.Plain. It stays so for the life of the
// request, but for the kill switch.
func (o *Rollout) Decides(q *policy.Request) bool {
	p := o.percentage.Load()
	return p == nil || *p != policy.Off && decides(float64(*p)/100, q)
}

func decides(share float64, q *policy.Request) bool {
	s := part.OfRequest(q)
	if s.Side == state.Undecided {
		s.Side = state.ByPlain
		if draw(q) < share {
			s.Side = state.ByPolicy
		}
	}
	return s.Side == state.ByPolicy
}

// draw returns a number in [0,1) that is the same for a session, in every process.
func draw(q *policy.Request) float64 {
	const seed = 0x726f_6c6c_6f75_7401 // apart from every other use of a session's hash
	key := cmp.Or(state.SessionKey(q.Affinity()), q.ID)
	if key == "" {
		return rand.Float64()
	}
	return float64(xxh3.HashStringSeed(key, seed)>>11) / (1 << 53)
}
