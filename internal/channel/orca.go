package channel

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/balancer/routing"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// namedMetrics is the field of OrcaLoadReport with the metrics that applications name: a
// map, and so a repeated message of key and value.
const (
	namedMetrics = 8
	mapKey       = 1
	mapValue     = 2
)

// parseOrca reads a serialised OrcaLoadReport (gRFC A51) as far as it is one, by field
// number: grpc's orca package would register the names of xDS protos with the application.
func parseOrca(b []byte) routing.ReplicaReport {
	running, waiting, uncached, capacity, draining := -1.0, -1.0, -1.0, -1.0, -1.0
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			break
		}
		b = b[n:]
		if num != namedMetrics || typ != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
				break
			}
			b = b[n:]
			continue
		}
		entry, n := protowire.ConsumeBytes(b)
		if n < 0 {
			break
		}
		b = b[n:]
		switch name, value := parseMetric(entry); name {
		case warmpathv1.MetricRunning:
			running = value
		case warmpathv1.MetricWaiting:
			waiting = value
		case warmpathv1.MetricUncachedTokens:
			uncached = value
		case warmpathv1.MetricTokenCapacity:
			capacity = value
		case warmpathv1.MetricDraining:
			draining = value
		}
	}
	report := routing.ReplicaReport{Ongoing: -1, QueuedTokens: int64(uncached), KVTokens: max(int(capacity), 0), Draining: draining > 0}
	if running >= 0 { // else those that wait are not all that are under way
		report.Ongoing = int(running + max(waiting, 0))
	}
	return report
}

// parseMetric reads one entry of the map; a value that is no count is -1.
func parseMetric(b []byte) (name string, value float64) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return "", -1
		}
		b = b[n:]
		switch {
		case num == mapKey && typ == protowire.BytesType:
			name, n = protowire.ConsumeString(b)
		case num == mapValue && typ == protowire.Fixed64Type:
			var bits uint64
			bits, n = protowire.ConsumeFixed64(b)
			value = math.Float64frombits(bits)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return "", -1
		}
		b = b[n:]
	}
	const most = 1 << 40 // no count is larger, and it fits everywhere
	if !(value >= 0 && value <= most) {
		return name, -1
	}
	return name, value
}
