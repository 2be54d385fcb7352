package router

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Decisions are sums over what a Router decided, until they are taken. Safe for use by many goroutines. The zero value
// counts nothing until Begin.
type Decisions struct {
	mu      sync.Mutex                                       // guards replacing the map
	reasons atomic.Pointer[map[policy.Reason]*atomic.Uint64] // nil = there is nobody to report to

	prompt, matched, cached atomic.Uint64
}

// maxReasons bounds the reasons: a custom policy has its own.
const (
	maxReasons  = 64
	otherReason = policy.Reason("other")
)

// A Decided is the sums that were taken.
type Decided struct {
	Reasons                 map[policy.Reason]uint64
	Prompt, Matched, Cached uint64 // tokens, over the requests that ended with usage
}

// Begin has decisions counted from now on: there is a look-aside server to report them to.
func (d *Decisions) Begin() {
	d.reasons.CompareAndSwap(nil, new(map[policy.Reason]*atomic.Uint64))
}

// Count counts a decision. It allocates at the first one of a reason only.
func (d *Decisions) Count(why policy.Reason) {
	all := d.reasons.Load()
	if all == nil {
		return
	}
	if n := (*all)[why]; n != nil {
		n.Add(1)
		return
	}
	d.counter(why).Add(1)
}

func (d *Decisions) counter(why policy.Reason) *atomic.Uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := make(map[policy.Reason]*atomic.Uint64)
	maps.Copy(next, *d.reasons.Load())
	if next[why] == nil && len(next) >= maxReasons {
		why = otherReason
	}
	if n := next[why]; n != nil {
		return n
	}
	n := new(atomic.Uint64)
	next[why] = n
	d.reasons.Store(&next)
	return n
}

// Used counts the usage of a request that has ended, if it has any.
func (d *Decisions) Used(q *policy.Request, made *policy.Decision, u policy.Usage) {
	if d.reasons.Load() == nil {
		return
	}
	if prompt, predicted, cached, ok := Used(q, made, u); ok {
		d.prompt.Add(prompt)
		d.matched.Add(predicted)
		d.cached.Add(cached)
	}
}

// Take adds the sums since it was called last to others.
func (d *Decisions) Take(to *Decided) {
	if all := d.reasons.Load(); all != nil {
		for why, n := range *all {
			if n := n.Swap(0); n > 0 {
				if to.Reasons == nil {
					to.Reasons = make(map[policy.Reason]uint64)
				}
				to.Reasons[why] += n
			}
		}
	}
	to.Prompt += d.prompt.Swap(0)
	to.Matched += d.matched.Swap(0)
	to.Cached += d.cached.Swap(0)
}
