package telemetry

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvevents"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router"
)

// A Figure is a metric whose value is read from a T whenever metrics are collected.
type Figure[T any] struct {
	Name, Unit, Text string
	Rises            bool // it never falls
	Value            func(T) int64
}

// Instruments make the metrics of one callback, and keep the first error.
type Instruments struct {
	recorder *Recorder
	all      []metric.Observable
	err      error
}

// Instruments returns what makes metrics that are read when they are collected.
func (r *Recorder) Instruments() *Instruments { return &Instruments{recorder: r} }

// Gauge makes a metric that rises and falls.
func (i *Instruments) Gauge(name, unit, text string) metric.Int64Observable {
	g, err := i.recorder.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(text))
	return i.made(g, err)
}

// Counter makes a metric that only rises.
func (i *Instruments) Counter(name, unit, text string) metric.Int64Observable {
	c, err := i.recorder.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(text))
	return i.made(c, err)
}

func (i *Instruments) made(o metric.Int64Observable, err error) metric.Int64Observable {
	if i.err == nil {
		i.err = err
	}
	i.all = append(i.all, o)
	return o
}

// Observe has read called at each collection until stop is called.
func (i *Instruments) Observe(read func(metric.Observer)) (stop func(), err error) {
	if i.err != nil {
		return nil, fmt.Errorf("telemetry: creating instruments: %w", i.err)
	}
	reg, err := i.recorder.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		read(o)
		return nil
	}, i.all...)
	if err != nil {
		return nil, fmt.Errorf("telemetry: registering the callback: %w", err)
	}
	return func() { _ = reg.Unregister() }, nil
}

// Table makes the metrics of a table, and returns what observes them.
func Table[T any](i *Instruments, figures []Figure[T]) func(metric.Observer, T, ...attribute.KeyValue) {
	var made []metric.Int64Observable
	for _, f := range figures {
		instrument := i.Gauge
		if f.Rises {
			instrument = i.Counter
		}
		made = append(made, instrument(f.Name, f.Unit, f.Text))
	}
	return func(o metric.Observer, from T, with ...attribute.KeyValue) {
		set := i.recorder.attributes(with...)
		for n, f := range figures {
			o.ObserveInt64(made[n], f.Value(from), set)
		}
	}
}

var routerFigures = []Figure[*router.Router]{
	{"warmpath.queue.length", "{request}", "Requests that wait for a replica with room.",
		false, func(r *router.Router) int64 { return int64(r.Queued()) }},
	{"warmpath.prepare.errors", "{error}", "Prepares of the policy that failed.",
		true, func(r *router.Router) int64 { return r.Counts.PrepareErrors.Load() }},
	{"warmpath.pick.corrections", "{pick}",
		"Picks of the policy that the request may not be given, and that were replaced.",
		true, func(r *router.Router) int64 { return r.Counts.Corrections.Load() }},
	{"warmpath.tokenize.errors", "{error}", "Prompts that stayed text, or of which the last turns did, since their tokens could not be had.",
		true, func(r *router.Router) int64 { return r.Counts.TokenizeErrors.Load() }},
	{"warmpath.probes", "{request}", "Requests sent to see whether an ejected replica is back.",
		true, func(r *router.Router) int64 { return r.Outliers().Stats().Probes }},
}

var indexFigures = []Figure[policy.IndexStats]{
	{"warmpath.index.bytes", "By", "Memory of the prefix index.",
		false, func(s policy.IndexStats) int64 { return s.Bytes }},
	{"warmpath.index.blocks", "{block}", "Blocks in the prefix index, of all replicas.",
		false, func(s policy.IndexStats) int64 { return s.Blocks }},
	{"warmpath.index.evictions", "{block}", "Blocks that the prefix index forgot to stay in its budget.",
		true, func(s policy.IndexStats) int64 { return s.Evictions }},
	{"warmpath.index.live_evictions", "{block}", "Of these, blocks that the engine, by its events, still has.",
		true, func(s policy.IndexStats) int64 { return s.LiveEvictions }},
	{"warmpath.index.refused", "{change}", "Changes of caches reported in blocks of another size than prompts are cut in.",
		true, func(s policy.IndexStats) int64 { return s.Refused }},
}

// Watch observes a Router, its replicas, and the index where the policy has one, until stop is called.
func (r *Recorder) Watch(policyName string, rt *router.Router) (stop func(), err error) {
	i := r.Instruments()
	observe, observeIndex := Table(i, routerFigures), Table(i, indexFigures)
	ongoing := i.Gauge("warmpath.replica.ongoing", "{request}", "Reservations under way, by replica.")
	condition := i.Gauge("warmpath.replica.condition", "{replica}", "1 for the condition that a replica is in, by replica.")
	ejections := i.Counter("warmpath.ejections", "{ejection}", "Replicas ejected, by cause.")
	by := KeyPolicy.String(policyName)
	return i.Observe(func(o metric.Observer) {
		observe(o, rt, by)
		if stats := rt.Policy().IndexStats; stats != nil {
			observeIndex(o, stats(), by)
		}
		for _, rep := range rt.View().Replicas() {
			id := KeyReplica.String(rep.ID)
			if rep.Connected() {
				o.ObserveInt64(ongoing, int64(rep.Ongoing()), r.attributes(by, id))
			}
			c, _ := rt.Outliers().State(rt.Outlier(rep))
			o.ObserveInt64(condition, 1, r.attributes(by, id, KeyCondition.String(c.String())))
		}
		for cause, n := range rt.Outliers().Stats().Ejections {
			if n > 0 {
				o.ObserveInt64(ejections, n, r.attributes(by, KeyCause.String(outlier.Cause(cause).String())))
			}
		}
	})
}

var eventFigures = []Figure[*kvevents.Status]{
	{"warmpath.kv_events.connected", "{stream}", "Streams of KV events that are connected.",
		false, func(s *kvevents.Status) int64 { return s.Connections }},
	{"warmpath.kv_events.blocks", "{block}", "Blocks that the replica has by its KV events.",
		false, func(s *kvevents.Status) int64 { return int64(s.Blocks) }},
	{"warmpath.kv_events.queued", "{message}", "KV event messages received and not applied yet.",
		false, func(s *kvevents.Status) int64 { return int64(s.Queued) }},
	{"warmpath.kv_events.messages", "{message}", "KV event messages applied.",
		true, func(s *kvevents.Status) int64 { return s.Messages }},
	{"warmpath.kv_events.gaps", "{gap}", "Holes in the sequence of KV events.",
		true, func(s *kvevents.Status) int64 { return s.Gaps }},
	{"warmpath.kv_events.clears", "{clear}",
		"Times that a replica counted as empty because something was lost or it was restarted.",
		true, func(s *kvevents.Status) int64 { return s.Clears }},
	{"warmpath.kv_events.orphaned", "{event}", "Stored blocks whose parent was never known.",
		true, func(s *kvevents.Status) int64 { return s.Orphaned }},
	{"warmpath.kv_events.forgotten", "{block}", "Blocks on a replica forgotten to stay in the budget.",
		true, func(s *kvevents.Status) int64 { return s.Forgotten }},
}

// WatchEvents observes how the KV events of a Router's replicas are doing until stop is called. status is called
// whenever metrics are collected.
func (r *Recorder) WatchEvents(policyName string, status func() []kvevents.Status) (stop func(), err error) {
	i := r.Instruments()
	observe := Table(i, eventFigures)
	unreadable := i.Counter("warmpath.kv_events.unreadable", "{event}",
		"KV events that could not be read or are not for the index.")
	lag, err := r.meter.Float64ObservableGauge("warmpath.kv_events.lag", metric.WithUnit("s"),
		metric.WithDescription("How long the KV event message applied last had waited."))
	if i.err == nil {
		i.err = err
	}
	i.all = append(i.all, lag)
	by := KeyPolicy.String(policyName)
	return i.Observe(func(o metric.Observer) {
		for _, sum := range byReplica(status()) {
			id := KeyReplica.String(sum.Replica)
			observe(o, &sum, by, id)
			o.ObserveFloat64(lag, sum.Lag.Seconds(), r.attributes(by, id))
			for kind, n := range sum.Unreadable {
				o.ObserveInt64(unreadable, n, r.attributes(by, id, KeyKind.String(kind)))
			}
		}
	})
}

// byReplica sums up the streams of each replica, which stand together. Connections are those that stand, and Lag is the
// longest.
func byReplica(all []kvevents.Status) (sums []kvevents.Status) {
	for i := range all {
		st := &all[i]
		if n := len(sums); n == 0 || sums[n-1].Replica != st.Replica {
			sums = append(sums, kvevents.Status{Replica: st.Replica, Unreadable: make(map[string]int64)})
		}
		sum := &sums[len(sums)-1]
		if st.Connected {
			sum.Connections++
		}
		sum.Blocks += st.Blocks
		sum.Queued += st.Queued
		sum.Messages += st.Messages
		sum.Gaps += st.Gaps
		sum.Clears += st.Clears
		sum.Orphaned += st.Orphaned
		sum.Forgotten += st.Forgotten
		sum.Lag = max(sum.Lag, st.Lag)
		for kind, n := range st.Unreadable {
			sum.Unreadable[kind] += n
		}
	}
	return sums
}
