package channel

import (
	"context"

	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/balancer/telemetry"
)

// A Route is what the application says about one call through its context.
type Route struct {
	Session string
	Pin     string
	Exclude []string
	// bare is the request key of a call of which only this is known. Read only.
	bare routing.Request
	// Report is filled with the decision of the call, where the application asked for it.
	Report *telemetry.Report
	// call is the one under way where the route was changed inside our
	// interceptors, by one that runs after them.
	call *Call
}

// key is the one context key of this package: its value is a *Route or a *Call,
// so that a picker needs a single look-up.
type key struct{}

// WithRoute returns a context with a changed copy of the route in ctx.
func WithRoute(ctx context.Context, change func(*Route)) context.Context {
	var r Route
	call, old := From(ctx)
	if old != nil {
		r = *old
	}
	r.call = call
	change(&r)
	r.bare = routing.Request{}
	Apply(&r, &r.bare)
	return context.WithValue(ctx, key{}, &r)
}

// nobody is the request key of a call of which nothing is known or asked.
var nobody routing.Request

// Bare returns the request key of a call without an interceptor, where that
// takes no look at its metadata; else nil. It is shared: read only.
func (r *Route) Bare(uses routing.Uses) *routing.Request {
	switch {
	case r == nil && uses == 0:
		return &nobody
	case r != nil && r.Report == nil && (uses == 0 || uses == routing.UsesSession && r.Session != ""):
		return &r.bare
	}
	return nil
}

// From returns the call in ctx, or nil, and the route, or nil.
func From(ctx context.Context) (*Call, *Route) {
	switch v := ctx.Value(key{}).(type) {
	case *Route:
		return v.call, v
	case *Call:
		return v, v.route
	}
	return nil, nil
}
