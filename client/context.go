package client

import (
	"context"
	"slices"

	"github.com/warmpath/warmpath/internal/call"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// A Session is a conversation of an agent. Fork(id) returns a child of it, End() frees what channels keep of it: see
// [call.Session].
type Session = call.Session

// NewSession returns the session with an id.
func NewSession(id string) *Session { return call.NewSession(id) }

// WithSession returns a context whose calls belong to a session, given as a [Session] or by its id.
// The session is not sent. It takes precedence over those in the metadata and in the message.
func WithSession[S string | *Session](ctx context.Context, session S) context.Context {
	return call.WithRoute(ctx, func(r *call.Route) {
		switch s := any(session).(type) {
		case string:
			r.SetSession(s)
		case *Session:
			r.SetSessionOf(s)
		}
	})
}

// WithPin returns a context whose calls go to the replica with the id and to no
// other. They wait while it is full. They fail with UNAVAILABLE where it is not in
// the fleet or its attributes say that it drains, and while it is not connected,
// unless the call has grpc.WaitForReady.
func WithPin(ctx context.Context, replica string) context.Context {
	return call.WithRoute(ctx, func(r *call.Route) { r.Pin = replica })
}

// WithExclude returns a context whose calls go to none of the replicas with the ids,
// besides those that the context excludes already. They fail with UNAVAILABLE where no
// other is left.
func WithExclude(ctx context.Context, replicas ...string) context.Context {
	return call.WithRoute(ctx, func(r *call.Route) { r.Exclude = append(slices.Clip(r.Exclude), replicas...) })
}

// A Decision is where a call went and why: Replica, Address, Prefill, Policy, Reason, Rule, MatchedTokens,
// PromptTokens, Place, Load, Queued, Attempts, Resumed and Usage, as [telemetry.Report] describes them.
type Decision = telemetry.Report

// WithDecision returns a context whose call fills d: where the last attempt went
// and why, and at the end the usage that the replica reported. Where no replica is
// picked, Replica is empty, Place and every field of Usage are -1. Read d after the
// call has ended, and use the context for one call.
func WithDecision(ctx context.Context, d *Decision) context.Context {
	*d = telemetry.NoReport
	return call.WithRoute(ctx, func(r *call.Route) { r.Report = d })
}
