package router

import (
	"errors"
	"math"
	"math/rand/v2"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/state"
)

// errNoPlain refuses a rollout without a policy for the rest.
var errNoPlain = errors.New("router: a Rollout needs Options.Plain")

// SetRollout puts a rollout into force, on picks that begin. The state of the policy stays.
func (r *Router) SetRollout(t policy.Rollout) error {
	all := t.Share >= 1 && !t.Off
	if r.opts.Plain == nil && !all {
		return errNoPlain
	}
	r.share.Store(math.Float64bits(t.Share))
	r.off.Store(t.Off)
	r.sharing.Store(!all)
	if all {
		r.shared.slow.And(^uint32(rolling))
		return nil
	}
	r.shared.slow.Or(rolling)
	return nil
}

// Decides reports whether the policy decides for a request, and not Options.Plain. It stays so for the life of the
// request, but for the kill switch.
func (r *Router) Decides(q *policy.Request) bool {
	if !r.sharing.Load() {
		return true
	}
	if r.off.Load() {
		return false
	}
	if q.State().Side == state.Undecided {
		q.State().Side = state.ByPlain
		if draw(q) < math.Float64frombits(r.share.Load()) {
			q.State().Side = state.ByPolicy
		}
	}
	return q.State().Side == state.ByPolicy
}

// rolloutSeed keeps the draw apart from every other use of a session's hash.
const rolloutSeed = 0x726f_6c6c_6f75_7401

// draw returns a number in [0,1) that is the same for a session, in every process.
func draw(q *policy.Request) float64 {
	key := policy.SessionKey(q.Session)
	if key == "" {
		key = q.ID
	}
	if key == "" {
		return rand.Float64()
	}
	return float64(xxh3.HashStringSeed(key, rolloutSeed)>>11) / (1 << 53)
}

// chooser returns what decides for a request in the choice under way.
func (r *Router) chooser(q *policy.Request) policy.Policy {
	if q.State().Plain {
		return r.opts.Plain
	}
	return r.opts.Policy
}
