package router

import (
	"errors"
	"math"
	"math/rand/v2"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/state"
)

// errNoPlain refuses a rollout without a policy for the rest.
var errNoPlain = errors.New("router: a Rollout needs Options.Plain")

// A Rollout is the [policy.Rollout] in force in a Router.
type Rollout struct {
	router  *Router
	sharing atomic.Bool // false where the policy decides for all
	off     atomic.Bool
	share   atomic.Uint64 // math.Float64bits
}

func (o *Rollout) set(t policy.Rollout) {
	o.share.Store(math.Float64bits(t.Share))
	o.off.Store(t.Off)
	o.sharing.Store(partial(t))
}

// partial reports whether the policy does not decide for all.
func partial(t policy.Rollout) bool { return t.Share < 1 || t.Off }

// Decides reports whether the policy decides for a request, and not Options.Plain. It stays so for the life of the
// request, but for the kill switch.
func (o *Rollout) Decides(q *policy.Request) bool {
	if !o.sharing.Load() {
		return true
	}
	if o.off.Load() {
		return false
	}
	s := q.State()
	if s.Side == state.Undecided {
		s.Side = state.ByPlain
		if draw(q) < math.Float64frombits(o.share.Load()) {
			s.Side = state.ByPolicy
		}
	}
	return s.Side == state.ByPolicy
}

// Set puts a rollout into force, on picks that begin. The state of the policy stays.
func (o *Rollout) Set(t policy.Rollout) error {
	r := o.router
	if r.opts.Plain.Choose == nil && partial(t) {
		return errNoPlain
	}
	o.set(t)
	r.quick.hinder(rolling, partial(t))
	return nil
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

// policy returns what decides for a request in the choice under way.
func (o *Rollout) policy(q *policy.Request) *policy.Policy {
	if q.State().Plain {
		return &o.router.opts.Plain
	}
	return &o.router.opts.Policy
}
