package call

import (
	"context"
	"math"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/protofield"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/router/load"
	"github.com/warmpath/warmpath/internal/telemetry"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// An outcome is how the last attempt went. Call.mu guards it.
type outcome struct {
	last    attempt
	result  policy.Outcome // of the last reservation, with the usage in the messages
	pending bool           // it is still to be reported
	began   time.Time      // where the Router does not measure how long the first message takes
}

// An attempt is what the retry loop looks at.
type attempt struct {
	Replica *policy.Replica // nil when none was picked
	Full    bool            // the channel's picker found every replica full
	Refused bool            // the replica refused the request with warmpath's trailer since it is full
	breaks  uint64          // of connections, before it began
	// DoneInfo is how it ended; zero = it has not. BytesReceived is set where something of an answer came, headers at
	// least. An answer without headers and messages, a status alone, has its content type in the trailer.
	balancer.DoneInfo
}

// statusAlone reports whether the replica answered with a status in place of headers and messages.
func (a *attempt) statusAlone() bool { return len(a.Trailer["content-type"]) > 0 }

// Note records a decision on the attempt's span, in the metrics, and in the report that the application asked for.
// call is the application's context; nil where it cannot be distinguished, as without an interceptor.
func Note(attempt, call context.Context, b *Binding, route *Route, q *policy.Request, d *policy.Decision) {
	b.Telemetry.Decided(attempt, call, b.Policy, q, d)
	if (d.Reason == policy.ReasonNoKey || d.Rule == policy.ReasonNoKey) && b.NoKey != nil && !keyless(q.Method) {
		b.NoKey(b, q.Method)
	}
	if route == nil || route.Report == nil {
		return
	}
	*route.Report = telemetry.Report{
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
		Usage:         policy.NoUsage,
	}
}

// NoteQuick records a quick pick. It builds a decision only where that is observed.
func NoteQuick(attempt context.Context, b *Binding, q *policy.Request, r *policy.Replica, why policy.Reason) {
	if trace.SpanFromContext(attempt).IsRecording() || b.Telemetry.Counts(attempt) {
		d := policy.To(r, why)
		Note(attempt, nil, b, nil, q, &d)
	}
}

// Ended ends the reservation of a call that has ended, and gives its Router what the replica reported in the trailer:
// its load, or how full it was when it refused. It reports whether it refused.
func Ended(b *router.Reservation, done balancer.DoneInfo) (refused bool) {
	if done.Err != nil {
		if report, ok := refusal(done); ok {
			b.Refused(report)
			return true
		}
	}
	b.Release()
	if r := b.Router(); r != nil && len(done.Trailer) > 0 {
		if raw := done.Trailer[warmpathv1.TrailerLoad]; len(raw) > 0 {
			r.Report(b.Decision.Replica.ID, parseOrca([]byte(raw[0])))
		}
	}
	return false
}

// EndedQuick is Ended for a quick reservation.
func EndedQuick(r *router.Quick, replica *policy.Replica, done balancer.DoneInfo) {
	if done.Err != nil {
		if report, ok := refusal(done); ok {
			r.Refused(replica, report)
			return
		}
	}
	r.Release(replica)
}

// refusal returns what a replica reported that refused because it is full. A plain RESOURCE_EXHAUSTED may be anything,
// and so may one that names no bound.
func refusal(done balancer.DoneInfo) (report load.Report, ok bool) {
	raw := done.Trailer[warmpathv1.TrailerRejection]
	var r warmpathv1.Rejection
	if len(raw) == 0 || status.Code(done.Err) != codes.ResourceExhausted ||
		proto.Unmarshal([]byte(raw[0]), &r) != nil || r.GetMaxOngoing() == 0 {
		return load.Report{}, false
	}
	return load.Report{Ongoing: int(r.GetOngoing()), QueuedTokens: -1}, true
}

// namedMetrics is the field of OrcaLoadReport with the metrics that applications name: a
// map, and so a repeated message of key and value.
const (
	namedMetrics = 8
	mapKey       = 1
	mapValue     = 2
)

// parseOrca reads a serialised OrcaLoadReport (gRFC A51) as far as it is one, by field
// number: grpc's orca package would register the names of xDS protos with the application.
func parseOrca(b []byte) load.Report {
	const running, waiting, uncached, capacity, draining = 0, 1, 2, 3, 4
	values := [...]float64{-1, -1, -1, -1, -1}
	protofield.Each(b, func(f protofield.Field) {
		if f.Number == namedMetrics {
			name, value := parseMetric(f.Bytes)
			if i := slices.Index(orcaMetrics, name); i >= 0 {
				values[i] = value
			}
		}
	})
	report := load.Report{
		Ongoing: -1, QueuedTokens: int64(values[uncached]), KVTokens: max(int(values[capacity]), 0),
		Draining: values[draining] > 0,
	}
	if values[running] >= 0 { // else those that wait are not all that are under way
		report.Ongoing = int(values[running] + max(values[waiting], 0))
	}
	return report
}

var orcaMetrics = []string{
	warmpathv1.MetricRunning, warmpathv1.MetricWaiting, warmpathv1.MetricUncachedTokens,
	warmpathv1.MetricTokenCapacity, warmpathv1.MetricDraining,
}

// parseMetric reads one entry of the map; a value that is no count is -1.
func parseMetric(b []byte) (name string, value float64) {
	ok := protofield.Each(b, func(f protofield.Field) {
		switch {
		case f.Number == mapKey:
			name = string(f.Bytes)
		case f.Number == mapValue && f.Type == protowire.Fixed64Type:
			value = math.Float64frombits(f.Value)
		}
	})
	const most = 1 << 40 // no count is larger
	if !ok || !(value >= 0 && value <= most) {
		return name, -1
	}
	return name, value
}
