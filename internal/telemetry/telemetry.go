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
	"fmt"
	"sync"
	"time"

	"github.com/zeebo/xxh3"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
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
)

// EventName is the name of the event that carries a decision where there is no
// span of the attempt's own.
const EventName = "warmpath.decision"

// Attributes describe one decision for a span.
func Attributes(policyName string, q *policy.Request, d policy.Decision) []attribute.KeyValue {
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
		kvs = append(kvs, KeySessionHash.String(fmt.Sprintf("%016x", xxh3.HashString(policy.SessionKey(q.Session)))))
	}
	return appendShadow(kvs, q, &d)
}

// Span writes a decision on the span in the context of an attempt. The span is
// the attempt's own if it differs from the one in the context of the call.
func Span(attempt context.Context, call trace.Span, policyName string, q *policy.Request, d policy.Decision) {
	span := trace.SpanFromContext(attempt)
	if !span.IsRecording() {
		return
	}
	kvs := Attributes(policyName, q, d)
	if call != nil && span == call {
		span.AddEvent(EventName, trace.WithAttributes(kvs...))
		return
	}
	span.SetAttributes(kvs...)
}

// NoReport is the Report of a call that no replica was picked for.
var NoReport = Report{Place: -1, Usage: policy.NoUsage}

// A Report is the decision of one call as the application reads it afterwards.
type Report struct {
	Replica       string // id of the replica of the last attempt that was sent; "" when none was picked
	Address       string
	Policy        string
	Reason        policy.Reason
	Rule          policy.Reason // the policy's own reason where Reason is another's: see [policy.Decision]
	MatchedTokens int           // prompt tokens predicted to be cached there
	PromptTokens  int
	Place         int           // in the rendezvous order or on the ring; -1 = none
	Load          float64       // of the replica when it was picked, in tokens
	Queued        time.Duration // how long the attempt waited in the queue
	Attempts      int           // made, this one included
	Usage         policy.Usage  // as the replica reported it
}

// A Recorder records metrics. Safe for use by many goroutines.
type Recorder struct {
	meter     metric.Meter
	decisions metric.Int64Counter
	pick      metric.Float64Histogram
	prompt    metric.Int64Counter
	predicted metric.Int64Counter
	measured  metric.Int64Counter
	unbound   metric.Int64Counter
	shadowed  metric.Int64Counter
	shadow    metric.Int64Counter
	actual    metric.Int64Counter
	failed    metric.Int64Counter
	attempts
	always []attribute.KeyValue // on everything
	sets   *sync.Map            // setKey -> metric.MeasurementOption
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
	counter := func(name, unit, what string) metric.Int64Counter {
		c, e := r.meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(what))
		if err == nil {
			err = e
		}
		return c
	}
	r.decisions = counter("warmpath.decisions", "{decision}", "Decisions by policy and reason.")
	r.prompt = counter("warmpath.prompt_tokens", "{token}", "Prompt tokens of the requests whose replica reported usage.")
	r.predicted = counter("warmpath.cached_tokens.predicted", "{token}",
		"Prompt tokens that the policy predicted to be cached on the replica it picked.")
	r.measured = counter("warmpath.cached_tokens.measured", "{token}",
		"Prompt tokens that the replica reported as cached.")
	r.shadowed = counter("warmpath.shadow.decisions", "{decision}",
		"Decisions of the shadow policy, by whether it would have sent the call elsewhere.")
	r.shadow = counter("warmpath.shadow.matched_tokens", "{token}",
		"Prompt tokens that the shadow policy predicted to be cached on the replica it would have picked.")
	r.actual = counter("warmpath.shadow.actual_matched_tokens", "{token}",
		"Of the same calls, prompt tokens that the shadow policy predicts to be cached on the replica that was picked.")
	r.unbound = counter("warmpath.handles.unbound", "{channel}",
		"Channels whose calls never met the warmpath balancer: a service config from elsewhere dropped it.")
	r.failed = counter("warmpath.attempts.failed", "{attempt}", "Attempts that ended in an error, by policy.")
	r.attempts = newAttempts(counter)
	pick, e := r.meter.Float64Histogram("warmpath.pick.duration", metric.WithUnit("s"),
		metric.WithDescription("Time to prepare, choose and reserve, without waiting in the queue."),
		metric.WithExplicitBucketBoundaries(1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4,
			1e-3, 2e-3, 5e-3, 1e-2, 1e-1))
	if err == nil {
		err = e
	}
	r.pick = pick
	if err != nil {
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

// Meter returns the meter through which it records, for what is not here.
func (r *Recorder) Meter() metric.Meter { return r.meter }

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
	kvs := []attribute.KeyValue{KeyPolicy.String(policyName)}
	if reason != "" {
		kvs = append(kvs, KeyReason.String(reason))
	}
	o := r.attributes(kvs...)
	r.sets.Store(k, o)
	return o
}

// Decided counts a decision.
func (r *Recorder) Decided(ctx context.Context, policyName string, d policy.Decision) {
	if r.decisions.Enabled(ctx) {
		r.decisions.Add(ctx, 1, r.set(policyName, string(d.Reason)))
	}
}

// Counts reports whether decisions are counted at all.
func (r *Recorder) Counts(ctx context.Context) bool { return r.decisions.Enabled(ctx) }

// Timed reports whether pick durations are recorded at all, so that the clock
// is not read in vain.
func (r *Recorder) Timed(ctx context.Context) bool { return r.pick.Enabled(ctx) }

// Picked records how long a pick took.
func (r *Recorder) Picked(ctx context.Context, policyName string, took time.Duration) {
	r.pick.Record(ctx, took.Seconds(), r.set(policyName, ""))
}

// Ended records the outcome of one attempt: what was predicted against what the
// replica reported.
func (r *Recorder) Ended(
	ctx context.Context, policyName string, q *policy.Request, d policy.Decision, o policy.Outcome,
) {
	if o.Err != nil && r.failed.Enabled(ctx) {
		r.failed.Add(ctx, 1, r.set(policyName, ""))
	}
	if o.Usage.CachedTokens < 0 || !r.measured.Enabled(ctx) {
		return
	}
	set := r.set(policyName, "")
	r.prompt.Add(ctx, int64(max(o.Usage.PromptTokens, q.PromptTokens)), set)
	r.predicted.Add(ctx, int64(d.MatchedTokens), set)
	r.measured.Add(ctx, int64(o.Usage.CachedTokens), set)
}

// Attribute keys of a shadow policy's decision.
const (
	KeyShadowPolicy        = attribute.Key("warmpath.shadow.policy")
	KeyShadowReason        = attribute.Key("warmpath.shadow.reason")
	KeyShadowReplica       = attribute.Key("warmpath.shadow.replica") // absent: it found none
	KeyShadowMatchedTokens = attribute.Key("warmpath.shadow.matched_tokens")
	KeyShadowDiffers       = attribute.Key("warmpath.shadow.differs")
)

// appendShadow adds what a shadow policy decided on the same request.
func appendShadow(kvs []attribute.KeyValue, q *policy.Request, d *policy.Decision) []attribute.KeyValue {
	name, shadow, _, ok := router.Shadow(q)
	if !ok {
		return kvs
	}
	kvs = append(kvs, KeyShadowPolicy.String(name), KeyShadowDiffers.Bool(shadow.Replica != d.Replica))
	if shadow.Replica != nil {
		kvs = append(kvs, KeyShadowReplica.String(shadow.Replica.ID), KeyShadowReason.String(string(shadow.Reason)),
			KeyShadowMatchedTokens.Int(shadow.MatchedTokens))
	}
	return kvs
}

// Shadowed counts what a shadow policy decided on a request, if there is one.
func (r *Recorder) Shadowed(ctx context.Context, policyName string, q *policy.Request, d *policy.Decision) {
	name, shadow, actual, ok := router.Shadow(q)
	if !ok || !r.shadowed.Enabled(ctx) {
		return
	}
	both := r.attributes(KeyPolicy.String(policyName), KeyShadowPolicy.String(name))
	r.shadow.Add(ctx, int64(shadow.MatchedTokens), both)
	r.actual.Add(ctx, int64(actual), both)
	differs := KeyShadowDiffers.Bool(shadow.Replica != d.Replica)
	r.shadowed.Add(ctx, 1, r.attributes(KeyPolicy.String(policyName), KeyShadowPolicy.String(name), differs))
}

// Unbound counts a channel that never met the balancer.
func (r *Recorder) Unbound(ctx context.Context) { r.unbound.Add(ctx, 1) }

// Watch observes a Router until stop is called: ongoing per replica, queue
// length, failed prepares, and the index where the policy has one.
func (r *Recorder) Watch(policyName string, rt *router.Router) (stop func(), err error) {
	gauge := func(name, unit, what string) metric.Int64ObservableGauge {
		g, e := r.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(what))
		if err == nil {
			err = e
		}
		return g
	}
	count := func(name, unit, what string) metric.Int64ObservableCounter {
		c, e := r.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(what))
		if err == nil {
			err = e
		}
		return c
	}
	ongoing := gauge("warmpath.replica.ongoing", "{request}", "Reservations under way, by replica.")
	queued := gauge("warmpath.queue.length", "{request}", "Requests that wait for a replica with room.")
	bytes := gauge("warmpath.index.bytes", "By", "Memory of the prefix index.")
	blocks := gauge("warmpath.index.blocks", "{block}", "Blocks in the prefix index, of all replicas.")
	evictions := count("warmpath.index.evictions", "{block}", "Blocks that the prefix index forgot to stay in its budget.")
	live := count("warmpath.index.live_evictions", "{block}",
		"Of these, blocks that the engine, by its events, still has.")
	refused := count("warmpath.index.refused", "{change}",
		"Changes of caches reported in blocks of another size than prompts are cut in.")
	errs := count("warmpath.prepare.errors", "{error}", "Prepares of the policy that failed.")
	corrected := count("warmpath.pick.corrections", "{pick}",
		"Picks of the policy that the request may not be given, and that were replaced.")
	texts := count("warmpath.tokenize.errors", "{error}", "Prompts that stayed text since their tokens could not be had.")
	if err != nil {
		return nil, fmt.Errorf("telemetry: creating instruments: %w", err)
	}
	reg, err := r.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		set := r.set(policyName, "")
		for _, rep := range rt.View().Connected() {
			o.ObserveInt64(ongoing, int64(rep.Ongoing()), r.attributes(KeyPolicy.String(policyName), KeyReplica.String(rep.ID)))
		}
		o.ObserveInt64(queued, int64(rt.Queued()), set)
		o.ObserveInt64(errs, rt.PrepareErrors(), set)
		o.ObserveInt64(corrected, rt.Corrections(), set)
		o.ObserveInt64(texts, rt.TokenizeErrors(), set)
		if stats := rt.Policy().IndexStats; stats != nil {
			s := stats()
			o.ObserveInt64(bytes, s.Bytes, set)
			o.ObserveInt64(blocks, s.Blocks, set)
			o.ObserveInt64(evictions, s.Evictions, set)
			o.ObserveInt64(live, s.LiveEvictions, set)
			o.ObserveInt64(refused, s.Refused, set)
		}
		return nil
	}, ongoing, queued, bytes, blocks, evictions, live, refused, errs, corrected, texts)
	if err != nil {
		return nil, fmt.Errorf("telemetry: registering the callback: %w", err)
	}
	return func() { _ = reg.Unregister() }, nil
}
