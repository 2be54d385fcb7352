package channel

import (
	"context"

	"go.opentelemetry.io/otel/trace"

	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// note makes a decision readable: on the attempt's span, in the metrics, and in
// the report that the application asked for.
func note(attempt context.Context, b *Binding, call trace.Span, report *telemetry.Report, q *routing.Request, d routing.Decision) {
	telemetry.Span(attempt, call, b.Policy, q, d)
	b.Telemetry.Decided(attempt, b.Policy, d)
	b.Telemetry.Shadowed(attempt, b.Policy, q, &d)
	if (d.Reason == routing.ReasonNoKey || d.Rule == routing.ReasonNoKey) && b.NoKey != nil && !keyless(q.Method) {
		b.NoKey(q.Method)
	}
	if report == nil {
		return
	}
	*report = telemetry.Report{
		Replica:       d.Replica.ID,
		Address:       d.Replica.Address,
		Policy:        b.Policy,
		Reason:        d.Reason,
		Rule:          d.Rule,
		MatchedTokens: d.MatchedTokens,
		PromptTokens:  q.PromptTokens,
		Place:         d.Place,
		Load:          d.Load,
		Queued:        d.Queued,
		Attempts:      q.Attempt(),
		Usage:         routing.NoUsage,
	}
}

// NoteQuick is Note for a quick pick: it looks twice before it builds a decision.
func NoteQuick(attempt context.Context, b *Binding, q *routing.Request, r *routing.Replica, why routing.Reason) {
	if trace.SpanFromContext(attempt).IsRecording() || b.Telemetry.Counts(attempt) {
		note(attempt, b, nil, nil, q, routing.To(r, why))
	}
}

// Note is note for a call without an interceptor, whose span cannot be told
// from the application's.
func Note(attempt context.Context, b *Binding, route *Route, q *routing.Request, d routing.Decision) {
	var report *telemetry.Report
	if route != nil {
		report = route.Report
	}
	note(attempt, b, nil, report, q, d)
}
