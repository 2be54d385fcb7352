// Package telemetry makes decisions readable: attributes on the attempt's span
// and metrics through an OpenTelemetry meter.
//
// The rule. One decision, one set of attributes on the span of the attempt it
// was made for; an event instead where no tracer made a span for the attempt,
// since the span at hand then belongs to the application and may see several.
// Metrics carry the policy, the reason and, for gauges, the replica: never a
// session, a prompt or a request id. Session ids appear on spans only hashed.
//
// Cost. Nothing is built while the span does not record and the instrument is
// not enabled.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/router/state"
)

// Scope is the name of the instrumentation scope.
const Scope = "github.com/warmpath/warmpath"

// Attribute keys, on spans and metrics.
const (
	KeyPolicy        = attribute.Key("warmpath.policy")
	KeyReason        = attribute.Key("warmpath.reason")
	KeyRule          = attribute.Key("warmpath.rule") // the policy's own reason: see policy.Decision.Rule
	KeyReplica       = attribute.Key("warmpath.replica")
	KeyMatchedTokens = attribute.Key("warmpath.matched_tokens")
	KeyPromptTokens  = attribute.Key("warmpath.prompt_tokens")
	KeyAttempt       = attribute.Key("warmpath.attempt")
	KeyPlace         = attribute.Key("warmpath.place") // in the rendezvous order or on the ring
	KeyLoad          = attribute.Key("warmpath.load_tokens")
	KeyRank          = attribute.Key("warmpath.rank") // data-parallel, of a replica with several
	KeyQueueWait     = attribute.Key("warmpath.queue_wait_ms")
	KeySessionHash   = attribute.Key("warmpath.session_hash")
	KeyDeployment    = attribute.Key("warmpath.deployment") // of a look-aside server
	KeyCause         = attribute.Key("warmpath.cause")      // of an ejection
	KeyCondition     = attribute.Key("warmpath.condition")  // of a replica
	KeyProbe         = attribute.Key("warmpath.probe")      // the request was sent to see whether the replica is back
	KeyKind          = attribute.Key("warmpath.kind")       // of a KV event that could not be read
	KeyOutputTokens  = attribute.Key("warmpath.output_tokens")
)

// Attribute keys of a shadow policy's decision.
const (
	KeyShadowPolicy        = attribute.Key("warmpath.shadow.policy")
	KeyShadowReason        = attribute.Key("warmpath.shadow.reason")
	KeyShadowReplica       = attribute.Key("warmpath.shadow.replica") // absent: it found none
	KeyShadowMatchedTokens = attribute.Key("warmpath.shadow.matched_tokens")
	KeyShadowDiffers       = attribute.Key("warmpath.shadow.differs")
)

// Names of events on spans.
const (
	EventName   = "warmpath.decision" // a decision, where there is no span of the attempt's own
	EjectedName = "warmpath.ejected"  // the call failed, and its replica is ejected since, or still
	ResumedName = "warmpath.resumed"  // the stream broke at a replica, after so many output tokens, and goes on elsewhere
)

// Attributes describe one decision for a span.
func Attributes(policyName string, q *policy.Request, d *policy.Decision) []attribute.KeyValue {
	kvs := make([]attribute.KeyValue, 0, 13)
	kvs = append(kvs,
		KeyPolicy.String(policyName),
		KeyReason.String(string(d.Reason)),
		KeyReplica.String(d.Replica.ID),
		KeyMatchedTokens.Int(d.MatchedTokens),
		KeyPromptTokens.Int(q.PromptTokens),
		KeyAttempt.Int(q.Attempt()),
		KeyLoad.Float64(d.Load),
	)
	if d.Probe() {
		kvs = append(kvs, KeyProbe.Bool(true))
	}
	if d.Rule != "" {
		kvs = append(kvs, KeyRule.String(string(d.Rule)))
	}
	if d.Place >= 0 {
		kvs = append(kvs, KeyPlace.Int(d.Place))
	}
	if d.Replica.Ranks > 1 && d.Rank() >= 0 {
		kvs = append(kvs, KeyRank.Int(d.Rank()))
	}
	if d.Queued > 0 {
		kvs = append(kvs, KeyQueueWait.Float64(float64(d.Queued)/float64(time.Millisecond)))
	}
	if q.Session != "" {
		kvs = append(kvs, KeySessionHash.String(fmt.Sprintf("%016x", state.SessionHash(q.Session))))
	}
	if name, shadow, _, ok := router.Shadow(q); ok {
		kvs = append(kvs, KeyShadowPolicy.String(name), KeyShadowDiffers.Bool(shadow.Replica != d.Replica))
		if shadow.Replica != nil {
			kvs = append(kvs, KeyShadowReplica.String(shadow.Replica.ID), KeyShadowReason.String(string(shadow.Reason)),
				KeyShadowMatchedTokens.Int(shadow.MatchedTokens))
		}
	}
	return kvs
}

// Resumed adds the event of a stream that goes on elsewhere.
func Resumed(span trace.Span, from *policy.Replica, tokens int) {
	if span.IsRecording() {
		span.AddEvent(ResumedName, trace.WithAttributes(KeyReplica.String(from.ID), KeyOutputTokens.Int(tokens)))
	}
}

// Ejected adds the event where the replica of a call that failed is ejected.
func Ejected(span trace.Span, rt *router.Router, r *policy.Replica) {
	if !span.IsRecording() {
		return
	}
	if c, cause := rt.Outliers().State(rt.Outlier(r)); c >= outlier.HalfOpen {
		span.AddEvent(EjectedName, trace.WithAttributes(
			KeyReplica.String(r.ID), KeyCondition.String(c.String()), KeyCause.String(cause.String())))
	}
}

// NoReport is the Report of a call that no replica was picked for.
var NoReport = Report{Place: -1, Usage: policy.NoUsage}

// A Report is the decision of one call as the application reads it afterwards: client.Decision, whose fields it has, so
// that one converts to the other.
type Report struct {
	Replica, Address, Prefill, Policy string
	Reason, Rule                      policy.Reason
	MatchedTokens, PromptTokens       int
	Place                             int
	Load                              float64
	Queued                            time.Duration
	Attempts, Resumed                 int
	Usage                             policy.Usage
}

// A Counter is a metric that counts by policy, and some of them by reason.
type Counter int

const (
	decisions  Counter = iota
	failed             // attempts
	Retries            // attempts after another one, by why they are made
	OverBudget         // attempts that were not made, since the budget is spent
	Aborts             // calls of an engine's Abort, by how they ended
	LoadPolls          // questions for a replica's load, by how they ended
	Resumes            // streams that broke and may go on at another replica, by whether they did
	Unbound            // channels that never met the balancer
	prompt
	predicted
	measured
	shadowed
	shadow
	actual
	counters // how many there are
)

// Why an attempt was made after another: the reasons of Retries.
const (
	RetryUnsent   = "unsent"              // no replica had begun to serve the request
	RetryRejected = "rejected"            // a full replica refused it
	RetryBroken   = "broken"              // it was sent, and got UNAVAILABLE or a reset before its first message
	RetryFailed   = "failed"              // a replica answered it with a status that may be the replica's own fault
	RetryTimeout  = "first_token_timeout" // nothing came in time: cancelled, and made elsewhere
)

// Whether a stream that broke went on elsewhere: the reasons of Resumes.
const (
	DidResume  = "resumed"
	NotResumed = "failed" // or is not safe to go on, or there is no replica or no budget
)

// How a call of the client's own to a replica ended: the reasons of Aborts and LoadPolls.
const (
	CallDone    = "done"
	CallFailed  = "failed"
	CallDropped = "dropped" // too many were under way, or the replica had gone
)

var counterNames = [counters]struct{ name, unit, text string }{
	decisions:  {"warmpath.decisions", "{decision}", "Decisions by policy and reason."},
	failed:     {"warmpath.attempts.failed", "{attempt}", "Attempts that ended in an error, by policy."},
	Retries:    {"warmpath.retries", "{attempt}", "Attempts made after another one of the call, by cause."},
	OverBudget: {"warmpath.retries.over_budget", "{attempt}", "Attempts that were not made, since the retry budget was spent."},
	Aborts:     {"warmpath.aborts", "{call}", "Calls of an engine's Abort for calls that were cancelled, by how they ended."},
	LoadPolls:  {"warmpath.load_polls", "{call}", "Questions for a replica's load, by how they ended."},
	Resumes:    {"warmpath.resumes", "{stream}", "Streams that broke and may go on elsewhere, by whether they did."},
	Unbound: {"warmpath.handles.unbound", "{channel}",
		"Channels whose calls never met the warmpath balancer: a service config from elsewhere dropped it."},
	prompt: {"warmpath.prompt_tokens", "{token}", "Prompt tokens of the requests whose replica reported usage."},
	predicted: {"warmpath.cached_tokens.predicted", "{token}",
		"Prompt tokens that the policy predicted to be cached on the replica it picked."},
	measured: {"warmpath.cached_tokens.measured", "{token}", "Prompt tokens that the replica reported as cached."},
	shadowed: {"warmpath.shadow.decisions", "{decision}",
		"Decisions of the shadow policy, by whether it would have sent the call elsewhere."},
	shadow: {"warmpath.shadow.matched_tokens", "{token}",
		"Prompt tokens that the shadow policy predicted to be cached on the replica it would have picked."},
	actual: {"warmpath.shadow.actual_matched_tokens", "{token}",
		"Of the same calls, prompt tokens that the shadow policy predicts to be cached on the replica that was picked."},
}

// A Recorder records metrics. Safe for use by many goroutines.
type Recorder struct {
	meter    metric.Meter
	counters [counters]metric.Int64Counter
	pick     metric.Float64Histogram
	always   []attribute.KeyValue // on everything
	sets     *sync.Map            // setKey -> metric.MeasurementOption
}

type setKey struct{ policy, reason string }

// New returns a Recorder that records through mp; nil means the global provider,
// also one that is set later.
func New(mp metric.MeterProvider) (*Recorder, error) {
	if mp == nil {
		mp = otel.GetMeterProvider()
	}
	r := &Recorder{meter: mp.Meter(Scope), sets: new(sync.Map)}
	var err error
	for i, c := range counterNames {
		var e error
		r.counters[i], e = r.meter.Int64Counter(c.name, metric.WithUnit(c.unit), metric.WithDescription(c.text))
		err = errors.Join(err, e)
	}
	var e error
	r.pick, e = r.meter.Float64Histogram("warmpath.pick.duration", metric.WithUnit("s"),
		metric.WithDescription("Time to prepare, choose and reserve, without the queue and questions for load."),
		metric.WithExplicitBucketBoundaries(1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4,
			1e-3, 2e-3, 5e-3, 1e-2, 1e-1))
	if err = errors.Join(err, e); err != nil {
		return nil, fmt.Errorf("telemetry: creating instruments: %w", err)
	}
	return r, nil
}

// With returns a Recorder that puts these attributes on all that it records, besides those of
// this one.
func (r *Recorder) With(always ...attribute.KeyValue) *Recorder {
	with := *r
	with.always, with.sets = append(r.always[:len(r.always):len(r.always)], always...), new(sync.Map)
	return &with
}

// attributes returns the set of these and those that are always there.
func (r *Recorder) attributes(kvs ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(append(kvs, r.always...)...))
}

// Default returns the Recorder of the global meter provider. Where that refuses an
// instrument, as with a view that does not fit it, OpenTelemetry's error handler is called
// and nothing is recorded.
var Default = sync.OnceValue(func() *Recorder {
	r, err := New(nil)
	if err != nil {
		otel.Handle(err)
		r, _ = New(noop.NewMeterProvider()) // refuses nothing
	}
	return r
})

func (r *Recorder) set(policyName, reason string) metric.MeasurementOption {
	k := setKey{policyName, reason}
	if o, ok := r.sets.Load(k); ok {
		return o.(metric.MeasurementOption)
	}
	var kvs []attribute.KeyValue
	if policyName != "" {
		kvs = append(kvs, KeyPolicy.String(policyName))
	}
	if reason != "" {
		kvs = append(kvs, KeyReason.String(reason))
	}
	o := r.attributes(kvs...)
	r.sets.Store(k, o)
	return o
}

// Count counts an event; an empty reason is left out.
func (r *Recorder) Count(ctx context.Context, c Counter, policyName, reason string) {
	if r.counters[c].Enabled(ctx) {
		r.counters[c].Add(ctx, 1, r.set(policyName, reason))
	}
}

// Counts reports whether decisions are counted at all.
func (r *Recorder) Counts(ctx context.Context) bool { return r.counters[decisions].Enabled(ctx) }

// Decided writes a decision on the span in the context of an attempt, and counts it, and what a shadow policy decided
// on the same request. The span is the attempt's own if it differs from that of the call.
func (r *Recorder) Decided(
	attempt, call context.Context, policyName string, q *policy.Request, d *policy.Decision,
) {
	if span := trace.SpanFromContext(attempt); span.IsRecording() {
		if kvs := Attributes(policyName, q, d); call != nil && span == trace.SpanFromContext(call) {
			span.AddEvent(EventName, trace.WithAttributes(kvs...))
		} else {
			span.SetAttributes(kvs...)
		}
	}
	if !r.Counts(attempt) {
		return
	}
	r.counters[decisions].Add(attempt, 1, r.set(policyName, string(d.Reason)))
	name, other, matched, ok := router.Shadow(q)
	if !ok {
		return
	}
	by, of := KeyPolicy.String(policyName), KeyShadowPolicy.String(name)
	both := r.attributes(by, of)
	r.counters[shadow].Add(attempt, int64(other.MatchedTokens), both)
	r.counters[actual].Add(attempt, int64(matched), both)
	r.counters[shadowed].Add(attempt, 1, r.attributes(by, of, KeyShadowDiffers.Bool(other.Replica != d.Replica)))
}

// Picking returns the time, zero where it is not recorded how long picks take.
func (r *Recorder) Picking(ctx context.Context) (now time.Time) {
	if r.pick.Enabled(ctx) {
		now = time.Now()
	}
	return now
}

// Picked records how long a pick took that began then, less its time in the queue.
func (r *Recorder) Picked(ctx context.Context, policyName string, began time.Time, queued time.Duration) {
	if !began.IsZero() {
		r.pick.Record(ctx, (time.Since(began) - queued).Seconds(), r.set(policyName, ""))
	}
}

// Ended records the outcome of one attempt: what was predicted against what the
// replica reported.
func (r *Recorder) Ended(
	ctx context.Context, policyName string, q *policy.Request, d *policy.Decision, o *policy.Outcome,
) {
	if o.Err != nil {
		r.Count(ctx, failed, policyName, "")
	}
	asked, expected, cached, ok := router.Used(q, d, o.Usage)
	if !ok || !r.counters[measured].Enabled(ctx) {
		return
	}
	set := r.set(policyName, "")
	r.counters[prompt].Add(ctx, int64(asked), set)
	r.counters[predicted].Add(ctx, int64(expected), set)
	r.counters[measured].Add(ctx, int64(cached), set)
}
