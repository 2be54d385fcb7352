package telemetry

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router"
)

// Attribute keys of the replicas' health.
const (
	KeyCause     = attribute.Key("warmpath.cause")     // of an ejection
	KeyCondition = attribute.Key("warmpath.condition") // of a replica
	KeyProbe     = attribute.Key("warmpath.probe")     // the request was sent to see whether the replica is back
)

// EjectedName is the event on the span of a call that failed and whose replica is ejected since, or still.
const EjectedName = "warmpath.ejected"

// Ejected adds the event where the replica is ejected.
func Ejected(span trace.Span, rt *router.Router, r *policy.Replica) {
	if !span.IsRecording() {
		return
	}
	if c, cause := rt.Outliers().State(rt.Outlier(r)); c >= outlier.HalfOpen {
		span.AddEvent(EjectedName, trace.WithAttributes(
			KeyReplica.String(r.ID), KeyCondition.String(c.String()), KeyCause.String(cause.String())))
	}
}

// WatchHealth observes the health of a Router's replicas until stop is called.
func (r *Recorder) WatchHealth(policyName string, rt *router.Router) (stop func(), err error) {
	gauge, err := r.meter.Int64ObservableGauge("warmpath.replica.condition", metric.WithUnit("{replica}"),
		metric.WithDescription("1 for the condition that a replica is in, by replica."))
	if err != nil {
		return nil, fmt.Errorf("telemetry: creating instruments: %w", err)
	}
	ejections, err := r.meter.Int64ObservableCounter("warmpath.ejections", metric.WithUnit("{ejection}"),
		metric.WithDescription("Replicas ejected, by cause."))
	if err != nil {
		return nil, fmt.Errorf("telemetry: creating instruments: %w", err)
	}
	probes, err := r.meter.Int64ObservableCounter("warmpath.probes", metric.WithUnit("{request}"),
		metric.WithDescription("Requests sent to see whether an ejected replica is back."))
	if err != nil {
		return nil, fmt.Errorf("telemetry: creating instruments: %w", err)
	}
	reg, err := r.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		by := KeyPolicy.String(policyName)
		for _, rep := range rt.View().Replicas() {
			c, _ := rt.Outliers().State(rt.Outlier(rep))
			o.ObserveInt64(gauge, 1, r.attributes(by, KeyReplica.String(rep.ID), KeyCondition.String(c.String())))
		}
		h := rt.Outliers().Stats()
		for cause, n := range h.Ejections {
			if n > 0 {
				o.ObserveInt64(ejections, n, r.attributes(by, KeyCause.String(outlier.Cause(cause).String())))
			}
		}
		o.ObserveInt64(probes, h.Probes, r.attributes(by))
		return nil
	}, gauge, ejections, probes)
	if err != nil {
		return nil, fmt.Errorf("telemetry: registering the callback: %w", err)
	}
	return func() { _ = reg.Unregister() }, nil
}
