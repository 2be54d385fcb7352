package call

import (
	"context"
	"sync"

	"github.com/warmpath/warmpath/balancer/policy"
)

// A Scope is the context of a call's attempts. gRPC and interceptors may keep it for as long as they like; the Call, whose
// memory may be used again when it has ended, is reached through it alone.
type Scope struct {
	context.Context // ends with the application's, at the timeout of the service config, and as EndsContext describes
	handle          *Handle
	given           *Route // of the context that the call began with

	mu   sync.Mutex // guards call, and is held while a picker uses it. That one's mu may be taken under it
	call *Call      // nil once its memory is used again
}

// Value returns the Scope itself for this package's key.
func (s *Scope) Value(k any) any {
	if _, ok := k.(ctxKey); ok {
		return s
	}
	return s.Context.Value(k)
}

// Handle returns the handle of the call's channel.
func (s *Scope) Handle() *Handle { return s.handle }

// Enter returns the Call until Leave, or nil, without a Leave, where its memory is used again.
func (s *Scope) Enter() *Call {
	s.mu.Lock()
	if s.call == nil {
		s.mu.Unlock()
		return nil
	}
	return s.call
}

// Leave follows Enter.
func (s *Scope) Leave() { s.mu.Unlock() }

// Clear makes the memory of a call that has ended that of a new one, unless something else may still refer to it. It
// reports whether it did.
func (c *Call) Clear() bool {
	s := c.Scope
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.plain() {
		return false
	}
	s.call = nil
	*c = Call{}
	return true
}

// plain reports whether a call that has ended was one attempt that succeeded at once. Goroutines and codecs of other
// calls may still refer to them.
func (c *Call) plain() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, q, last := c.reserved.binding, &c.key.request, &c.outcome.last
	return last.Replica != nil && last.Err == nil && !c.busy && !c.shared && c.legs == nil && !c.Attempts.coded &&
		q.Attempt() == 1 && q.State().Shadow == nil && c.Decision().Queued == 0 &&
		b.Uses&policy.CallsOut == 0 && b.Probe == nil && b.Central == (Central{})
}
