package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/metric"
)

// Why an attempt was made after another: the reasons of warmpath.retries.
const (
	RetryUnsent   = "unsent"              // no replica had begun to serve the request
	RetryRejected = "rejected"            // a full replica refused it
	RetryBroken   = "broken"              // it was sent, and got UNAVAILABLE or a reset before its first message
	RetryTimeout  = "first_token_timeout" // nothing came in time: cancelled, and made elsewhere
)

// How a call of an engine's Abort ended: the reasons of warmpath.aborts.
const (
	AbortDone    = "done"
	AbortFailed  = "failed"
	AbortDropped = "dropped" // too many were under way, or the replica had gone
)

// attempts are the counters of attempts after the first.
type attempts struct {
	retries     metric.Int64Counter
	overBudget  metric.Int64Counter
	quarantined metric.Int64Counter
	aborts      metric.Int64Counter
}

func newAttempts(counter func(name, unit, what string) metric.Int64Counter) attempts {
	return attempts{
		retries: counter("warmpath.retries", "{attempt}", "Attempts made after another one of the call, by cause."),
		overBudget: counter("warmpath.retries.over_budget", "{attempt}",
			"Attempts that were not made, since the retry budget was spent."),
		quarantined: counter("warmpath.quarantined", "{call}", "Calls that failed because their prompt is in quarantine."),
		aborts: counter("warmpath.aborts", "{call}",
			"Calls of an engine's Abort for calls that were cancelled, by how they ended."),
	}
}

// Retried counts an attempt that is not the first, by why it is made.
func (r *Recorder) Retried(ctx context.Context, policy, why string) {
	r.retries.Add(ctx, 1, r.set(policy, why))
}

// OverBudget counts an attempt that was not made for want of a budget.
func (r *Recorder) OverBudget(ctx context.Context, policy string) {
	r.overBudget.Add(ctx, 1, r.set(policy, ""))
}

// Quarantined counts a call that failed because of its prompt.
func (r *Recorder) Quarantined(ctx context.Context, policy string) {
	r.quarantined.Add(ctx, 1, r.set(policy, ""))
}

// Aborted counts a call of an engine's Abort by how it ended.
func (r *Recorder) Aborted(ctx context.Context, policy, how string) {
	r.aborts.Add(ctx, 1, r.set(policy, how))
}
