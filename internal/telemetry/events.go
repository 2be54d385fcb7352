package telemetry

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/warmpath/warmpath/internal/kvevents"
)

// KeyKind is the kind of what could not be read of a replica's KV events.
const KeyKind = attribute.Key("warmpath.kind")

// eventMetric is one figure of a replica's KV events, summed over its streams.
type eventMetric struct {
	name, unit, what string
	value            func(*kvevents.Status) int64
}

var eventGauges = []eventMetric{
	{"warmpath.kv_events.connected", "{stream}", "Streams of KV events that are connected.",
		func(s *kvevents.Status) int64 {
			if s.Connected {
				return 1
			}
			return 0
		}},
	{"warmpath.kv_events.blocks", "{block}", "Blocks that the replica has by its KV events.",
		func(s *kvevents.Status) int64 { return int64(s.Blocks) }},
	{"warmpath.kv_events.queued", "{message}", "KV event messages received and not applied yet.",
		func(s *kvevents.Status) int64 { return int64(s.Queued) }},
}

var eventCounts = []eventMetric{
	{"warmpath.kv_events.messages", "{message}", "KV event messages applied.",
		func(s *kvevents.Status) int64 { return s.Messages }},
	{"warmpath.kv_events.gaps", "{gap}", "Holes in the sequence of KV events.",
		func(s *kvevents.Status) int64 { return s.Gaps }},
	{"warmpath.kv_events.clears", "{clear}", "Times that a replica counted as empty because something was lost or it was restarted.",
		func(s *kvevents.Status) int64 { return s.Clears }},
	{"warmpath.kv_events.orphaned", "{event}", "Stored blocks whose parent was never known.",
		func(s *kvevents.Status) int64 { return s.Orphaned }},
	{"warmpath.kv_events.forgotten", "{block}", "Blocks on a replica forgotten to stay in the budget.",
		func(s *kvevents.Status) int64 { return s.Forgotten }},
}

// WatchEvents records how the KV events of a Router's replicas are doing until the
// function that it returns is called. status is called whenever metrics are read.
func (r *Recorder) WatchEvents(policy string, status func() []kvevents.Status) (stop func(), err error) {
	var all []metric.Int64Observable
	var values []func(*kvevents.Status) int64
	for _, m := range eventGauges {
		g, e := r.meter.Int64ObservableGauge(m.name, metric.WithUnit(m.unit), metric.WithDescription(m.what))
		if err == nil {
			err = e
		}
		all, values = append(all, g), append(values, m.value)
	}
	for _, m := range eventCounts {
		c, e := r.meter.Int64ObservableCounter(m.name, metric.WithUnit(m.unit), metric.WithDescription(m.what))
		if err == nil {
			err = e
		}
		all, values = append(all, c), append(values, m.value)
	}
	lag, e := r.meter.Float64ObservableGauge("warmpath.kv_events.lag", metric.WithUnit("s"),
		metric.WithDescription("How long the KV event message applied last had waited."))
	if err == nil {
		err = e
	}
	unread, e := r.meter.Int64ObservableCounter("warmpath.kv_events.unreadable", metric.WithUnit("{event}"),
		metric.WithDescription("KV events that could not be read or are not for the index."))
	if err == nil {
		err = e
	}
	if err != nil {
		return nil, fmt.Errorf("telemetry: creating instruments: %w", err)
	}
	observed := []metric.Observable{lag, unread}
	for _, i := range all {
		observed = append(observed, i)
	}
	reg, err := r.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for _, sum := range byReplica(status(), values) {
			base := []attribute.KeyValue{KeyPolicy.String(policy), KeyReplica.String(sum.replica)}
			set := r.attributes(base...)
			for i, instrument := range all {
				o.ObserveInt64(instrument, sum.values[i], set)
			}
			o.ObserveFloat64(lag, sum.lag, set)
			for kind, n := range sum.unreadable {
				o.ObserveInt64(unread, n, r.attributes(append(base[:2:2], KeyKind.String(kind))...))
			}
		}
		return nil
	}, observed...)
	if err != nil {
		return nil, fmt.Errorf("telemetry: registering the callback: %w", err)
	}
	return func() { _ = reg.Unregister() }, nil
}

// eventSum is the figures of one replica.
type eventSum struct {
	replica    string
	values     []int64
	lag        float64 // the longest
	unreadable map[string]int64
}

// byReplica sums up the streams of each replica, which stand together.
func byReplica(all []kvevents.Status, values []func(*kvevents.Status) int64) (sums []eventSum) {
	for i := range all {
		st := &all[i]
		if n := len(sums); n == 0 || sums[n-1].replica != st.Replica {
			sum := eventSum{replica: st.Replica, values: make([]int64, len(values)), unreadable: map[string]int64{}}
			sums = append(sums, sum)
		}
		sum := &sums[len(sums)-1]
		for j, value := range values {
			sum.values[j] += value(st)
		}
		sum.lag = max(sum.lag, st.Lag.Seconds())
		for kind, n := range st.Unreadable {
			sum.unreadable[kind] += n
		}
	}
	return sums
}
