package call

import (
	"context"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// A Route is what the application sets for one call through its context.
type Route struct {
	Session string
	Pin     string
	Exclude []string
	parent  string   // of the session; empty = none
	of      *Session // the session; nil = the application has given its id alone, or none
	// Report is filled with the decision of the call, where the application asked for it.
	Report *telemetry.Report
	// call is the one under way where an interceptor inside changed the route. set
	// is what was changed there and nothing else, for calls of other channels.
	call *Scope
	set  *Route
}

// ctxKey is the one context key of this package: its value is a scope, so that a picker needs a single look-up.
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
	return n
}

// Unreported returns the route without its Report, for an attempt of which nothing becomes known.
func (r *Route) Unreported() *Route {
	if r == nil || r.Report == nil {
		return r
	}
	return r.changed(func(r *Route) { r.Report = nil })
}

// apply puts the route into a request.
func (r *Route) apply(q *policy.Request) {
	q.Session, q.Pin, q.Exclude = requestkey.Session(r.Session), r.Pin, r.Exclude
	q.SetParent(r.parent)
}

// Beyond returns what another channel takes from a route found in the context of an attempt of the call: what was set
// in that context, or nil.
func (s *Scope) Beyond(r *Route) *Route {
	if r == nil || r == s.given {
		return nil
	}
	return r.set
}

// routeOf returns the route of a call that begins on the handle's channel in the context of another one, outer, with
// the route there. It gets no Report of that call, and nothing at all of a call on another channel but what was set
// in it.
func (h *Handle) routeOf(outer *Scope, r *Route) *Route {
	switch {
	case outer.handle != h:
		return outer.Beyond(r)
	case outer.given != nil && r.Report == outer.given.Report:
		return r.changed(func(r *Route) { r.Report, r.call, r.set = nil, nil, nil })
	}
	return r
}

// A scope is what a context has of this package: a *Route or a *Scope.
type scope interface{ scope() (*Scope, *Route) }

func (r *Route) scope() (*Scope, *Route) { return r.call, r }
func (s *Scope) scope() (*Scope, *Route) { return s, s.given }

// From returns the scope of the call in ctx, or nil, and the route, or nil. The call may be one of another channel.
func From(ctx context.Context) (*Scope, *Route) {
	if s, ok := ctx.Value(ctxKey{}).(scope); ok {
		return s.scope()
	}
	return nil, nil
}
