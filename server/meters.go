package server

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc/codes"

	"github.com/warmpath/warmpath/internal/telemetry"
)

// Attribute keys of the server's own metrics.
const (
	keyState = attribute.Key("warmpath.state")
	keyCode  = attribute.Key("warmpath.code")
)

// A figure is a metric with the deployment as its only attribute.
type figure struct {
	name, unit, what string
	value            func(*deployment) int64
}

var gauges = []figure{
	{"warmpath.server.watchers", "{client}", "Clients that watch.", (*deployment).watching},
	{"warmpath.server.reservations", "{pick}", "Picks that add to the load, reserved or not.",
		func(d *deployment) int64 { return int64(d.picks.leases.held()) }},
	{"warmpath.server.index.superblocks", "{superblock}", "Superblocks of 512 tokens in the broadcast index.",
		func(d *deployment) int64 { return d.hosted.Load().superblocks() }},
}

var counts = []figure{
	{"warmpath.server.reservations.expired", "{reservation}", "Reservations that ended with their lease.",
		func(d *deployment) int64 { return d.picks.leases.expired.Load() }},
	{"warmpath.server.registrations.expired", "{replica}",
		"Registered replicas that were removed at the end of their lease.",
		func(d *deployment) int64 { return d.tally.registrationsExpired.Load() }},
	{"warmpath.server.polls.failed", "{poll}", "Load polls without an answer.",
		func(d *deployment) int64 { _, failed := d.pollProblems(); return failed }},
	{"warmpath.server.broadcast.bytes", "By", "Bytes sent to watching clients.",
		func(d *deployment) int64 { return d.tally.sentBytes.Load() }},
	{"warmpath.server.broadcast.messages", "{message}", "Messages sent to watching clients.",
		func(d *deployment) int64 { return d.tally.sentMessages.Load() }},
}

// observe records the deployment's metrics until it is closed. It is called once, before the deployment is used.
func (d *deployment) observe(r *telemetry.Recorder) error {
	d.picks.recorder = r.With(telemetry.KeyDeployment.String(d.name))
	stop, err := d.watchMeters()
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	d.unobserve = stop
	return d.hosted.Load().observe(d.picks.recorder)
}

// unrestrictedReader reads the load for metrics, which are for operators.
var unrestrictedReader = unrestricted()

// watchMeters registers the metrics that the deployment counts by itself.
func (d *deployment) watchMeters() (stop func(), err error) {
	b := builder{meter: d.picks.recorder.Meter()}
	var values []metric.Int64Observable
	for _, f := range gauges {
		values = append(values, b.gauge(f.name, f.unit, f.what))
	}
	for _, f := range counts {
		values = append(values, b.count(f.name, f.unit, f.what))
	}
	failed := b.count("warmpath.server.picks.failed", "{pick}", "Failed picks, by the gRPC status code.")
	replicas := b.gauge("warmpath.server.replicas", "{replica}", "Replicas by state.")
	ongoing := b.gauge("warmpath.server.replica.ongoing", "{request}", "Requests under way on a replica.")
	queued := b.gauge("warmpath.server.replica.queued_tokens", "{token}",
		"Uncached prompt tokens of them not yet prefilled.")
	stale := b.gauge("warmpath.server.replica.stale", "{replica}", "1 where a replica's load rests on stale reports.")
	if b.err != nil {
		return nil, b.err
	}
	which := telemetry.KeyDeployment.String(d.name)
	reg, err := d.picks.recorder.Meter().RegisterCallback(func(_ context.Context, o metric.Observer) error {
		own := metric.WithAttributes(which)
		for i, f := range append(gauges[:len(gauges):len(gauges)], counts...) {
			o.ObserveInt64(values[i], f.value(d), own)
		}
		for code := range d.tally.failures {
			if n := d.tally.failures[code].Load(); n > 0 {
				o.ObserveInt64(failed, n, metric.WithAttributes(which, keyCode.String(codes.Code(code).String())))
			}
		}
		states := map[string]int64{
			stateReady: 0, stateFull: 0, stateEjected: 0, stateNotServing: 0, stateDraining: 0, stateDisconnected: 0,
		}
		for _, r := range d.replicaStatuses(unrestrictedReader) {
			states[r.State]++
			set := metric.WithAttributes(which, telemetry.KeyReplica.String(r.GetId()))
			o.ObserveInt64(ongoing, int64(r.GetOngoing()), set)
			o.ObserveInt64(queued, int64(r.GetQueuedTokens()), set)
			o.ObserveInt64(stale, oneIf(r.GetStale()), set)
		}
		for state, n := range states {
			o.ObserveInt64(replicas, n, metric.WithAttributes(which, keyState.String(state)))
		}
		return nil
	}, append(b.all, failed, replicas, ongoing, queued, stale)...)
	if err != nil {
		return nil, err
	}
	return func() { _ = reg.Unregister() }, nil
}

func oneIf(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// builder makes instruments and keeps the first error.
type builder struct {
	meter metric.Meter
	all   []metric.Observable
	err   error
}

func (b *builder) gauge(name, unit, what string) metric.Int64Observable {
	g, err := b.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(what))
	return b.made(g, err)
}

func (b *builder) count(name, unit, what string) metric.Int64Observable {
	c, err := b.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(what))
	return b.made(c, err)
}

func (b *builder) made(i metric.Int64Observable, err error) metric.Int64Observable {
	if b.err == nil {
		b.err = err
	}
	b.all = append(b.all, i)
	return i
}

// observe records the metrics of a Router, of its replicas' health and of their events until it is closed.
func (h *hosted) observe(r *telemetry.Recorder) error {
	stop, err := r.Watch(h.config.Policy.Name, h.router)
	if err != nil {
		return err
	}
	h.unwatch = append(h.unwatch, stop)
	if stop, err = r.WatchHealth(h.config.Policy.Name, h.router); err != nil {
		return err
	}
	h.unwatch = append(h.unwatch, stop)
	if h.events == nil {
		return nil
	}
	if stop, err = r.WatchEvents(h.config.Policy.Name, h.events.Status); err == nil {
		h.unwatch = append(h.unwatch, stop)
	}
	return err
}

func (h *hosted) superblocks() int64 {
	if h.index == nil {
		return 0
	}
	return int64(h.index.size())
}

func (d *deployment) watching() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return int64(d.watchers)
}
