package channel

import (
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// rare is what only few calls need to remember.
type rare struct {
	// hash is that of the prompt, for the quarantine; used by the goroutine of the call.
	hash              uint64
	hashed, hasPrompt bool
	// id is the request's own, where Request.ID is not it. It does not change once set.
	id string
	// span is the application's, where it records. It does not change once set.
	span trace.Span
	// picked is the time of the last pick, where the Router does not measure. Guarded by Call.mu.
	picked time.Time
	// rank is one more than the data-parallel rank that the attempt's message gets, 0 = none. Guarded by Call.mu.
	rank int
	// repeats counts the attempts that were sent and repeated inside one pass of the interceptor's loop; inside says that
	// an interceptor makes them. Guarded by Call.mu.
	repeats int
	inside  bool
	// late says that the attempt under way is given up because its first message is late. outrun is the replica that an
	// earlier attempt was given up on for that; nil = none. Guarded by Call.mu.
	late   bool
	outrun *routing.Replica
}

// more returns what few calls remember, to be changed.
func (c *Call) more() *rare {
	if r := c.rare.Load(); r != nil {
		return r
	}
	c.rare.CompareAndSwap(nil, new(rare))
	return c.rare.Load()
}

// report is where the application reads the decision; nil = it does not. Called with mu held.
func (c *Call) report() *telemetry.Report {
	if c.route != nil {
		return c.route.Report
	}
	return nil
}

// repeated notes that an attempt is repeated without the interceptor's loop. gRPC does that by itself once, and
// only where no answer came. Called with mu held.
func (c *Call) repeated() {
	if !c.last.Sent {
		return
	}
	r := c.more()
	r.repeats++
	r.inside = r.inside || c.last.Answered || r.repeats > 1
}

// RetriedInside reports whether an interceptor inside ours makes retries.
func (c *Call) RetriedInside() bool {
	r := c.rare.Load()
	if r == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return r.inside
}

// requestID is the id by which the engine knows the request.
func (c *Call) requestID() string {
	if r := c.rare.Load(); r != nil && r.id != "" {
		return r.id
	}
	return c.Request.ID
}

// span is the application's, or nil where it does not record.
func (c *Call) span() trace.Span {
	if r := c.rare.Load(); r != nil {
		return r.span
	}
	return nil
}

// sincePick is how long ago the last pick was, where it was noted, else 0. Called with mu held.
func (c *Call) sincePick() time.Duration {
	if r := c.rare.Load(); r != nil && !r.picked.IsZero() {
		return time.Since(r.picked)
	}
	return 0
}
