package router

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/state"
)

// A Rollout is the [policy.Rollout] in force in a Router.
type Rollout struct {
	router *Router
	now    atomic.Pointer[policy.Rollout] // nil = the policy decides for all
}

// Set puts a rollout into force, on picks that begin. The state of the policy stays.
func (o *Rollout) Set(t policy.Rollout) error {
	partial := t.Share < 1 || t.Off
	switch {
	case !partial:
		o.now.Store(nil)
	case o.router.opts.Plain.Choose == nil:
		return errors.New("router: a Rollout needs Options.Plain")
	default:
		o.now.Store(&t)
	}
	o.router.quick.hinder(rolling, partial)
	return nil
}

// Decides reports whether the policy decides for a request, and not Options.Plain. It stays so for the life of the
// request, but for the kill switch.
func (o *Rollout) Decides(q *policy.Request) bool {
	t := o.now.Load()
	return t == nil || !t.Off && decides(t.Share, q)
}

func decides(share float64, q *policy.Request) bool {
	s := q.State()
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
	key := cmp.Or(policy.SessionKey(q.Session), q.ID)
	if key == "" {
		return rand.Float64()
	}
	return float64(xxh3.HashStringSeed(key, seed)>>11) / (1 << 53)
}
