package call

import (
	"context"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// A Route is what the application sets for one call through its context.
type Route struct {
	Session string
	Pin     string
	Exclude []string
	// bare is the request key of a call of which only this is known. Read only.
	bare policy.Request
	// Report is filled with the decision of the call, where the application asked for it.
	Report *telemetry.Report
	// call is the one under way where an interceptor inside changed the route. set
	// is what was changed there and nothing else, for calls of other channels.
	call *Call
	set  *Route
}

// ctxKey is the one context key of this package: its value is a *Route or a *Call,
// so that a picker needs a single look-up.
type ctxKey struct{}

// WithRoute returns a context with a changed copy of the route in ctx.
func WithRoute(ctx context.Context, change func(*Route)) context.Context {
	call, old := From(ctx)
	r := old.changed(change)
	if call != nil {
		r.call, r.set = call, call.Beyond(old).changed(change)
	}
	return context.WithValue(ctx, ctxKey{}, r)
}

// changed returns a changed copy of a route, which may be nil.
func (r *Route) changed(change func(*Route)) *Route {
	n := new(Route)
	if r != nil {
		*n = *r
	}
	change(n)
	n.bare = policy.Request{}
	n.apply(&n.bare)
	return n
}

// apply puts the route into a request.
func (r *Route) apply(q *policy.Request) {
	if r != nil {
		q.Session, q.Pin, q.Exclude = dialect.Session(r.Session), r.Pin, r.Exclude
	}
}

// Beyond returns what another channel takes from a route found in the context of an attempt of the call: what was set
// in that context, or nil.
func (c *Call) Beyond(r *Route) *Route {
	if r == nil || r == c.given {
		return nil
	}
	return r.set
}

// routeOf returns the route of a call that begins with a context on the handle's channel. The context of another call's
// attempt gives it no Report of that call, and nothing at all of a call on another channel but what was set in it.
func (h *Handle) routeOf(ctx context.Context) *Route {
	call, r := From(ctx)
	switch {
	case call == nil || r == nil:
		return r
	case call.handle != h:
		return call.Beyond(r)
	case call.given != nil && r.Report == call.given.Report:
		return r.changed(func(r *Route) { r.Report, r.call, r.set = nil, nil, nil })
	}
	return r
}

// blank is the request key of a call of which nothing is known or asked.
var blank policy.Request

// Bare returns the request key of a call without an interceptor, where that
// takes no look at its metadata; else nil. It is shared: read only.
func (r *Route) Bare(uses policy.Uses) *policy.Request {
	switch {
	case r == nil && uses == 0:
		return &blank
	case r != nil && r.Report == nil && (uses == 0 || uses == policy.UsesSession && r.Session != ""):
		return &r.bare
	}
	return nil
}

// From returns the call in ctx, or nil, and the route, or nil. The call may be one of another channel.
func From(ctx context.Context) (*Call, *Route) {
	switch v := ctx.Value(ctxKey{}).(type) {
	case *Route:
		return v.call, v
	case *Call:
		return v, v.given
	}
	return nil, nil
}
