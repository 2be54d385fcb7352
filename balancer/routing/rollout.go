package routing

import (
	"errors"
	"math"
	"math/rand/v2"

	"github.com/zeebo/xxh3"
)

// A Rollout says how much of the traffic a Router's policy decides. What it does not, Options.Plain does.
type Rollout struct {
	// Share is the part of the requests that the policy decides, 0 to 1. Requests of one session go the same way; without
	// a session those with one id; without either it is drawn for each.
	Share float64
	// Off is the kill switch: neither the policy nor its shadow is asked or told of anything but the ends of what they
	// were told of before.
	Off bool
}

// side is who decides for a request.
type side uint8

const (
	undecided side = iota
	byPolicy
	byPlain
)

// errNoPlain is what a rollout without anybody to decide the rest is refused with.
var errNoPlain = errors.New("routing: a Rollout needs Options.Plain")

// SetRollout puts a rollout into force, on picks that begin. The state of the policy stays.
func (r *Router) SetRollout(t Rollout) error {
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
func (r *Router) Decides(q *Request) bool {
	if !r.sharing.Load() {
		return true
	}
	if r.off.Load() {
		return false
	}
	if q.side == undecided {
		q.side = byPlain
		if draw(q) < math.Float64frombits(r.share.Load()) {
			q.side = byPolicy
		}
	}
	return q.side == byPolicy
}

// Adopt says that somebody has decided already that the policy is to decide for the request: the host of another
// Router with the same rollout.
func (q *Request) Adopt() { q.side = byPolicy }

// rolloutSeed keeps the draw apart from every other use of a session's hash.
const rolloutSeed = 0x726f_6c6c_6f75_7401

// draw returns a number in [0,1) that is the same for a session, in every process.
func draw(q *Request) float64 {
	key := SessionKey(q.Session)
	if key == "" {
		key = q.ID
	}
	if key == "" {
		return rand.Float64()
	}
	return float64(xxh3.HashStringSeed(key, rolloutSeed)>>11) / (1 << 53)
}

// chooser returns who decides for a request in the choice under way.
func (r *Router) chooser(q *Request) Policy {
	if q.unasked {
		return r.opts.Plain
	}
	return r.opts.Policy
}
