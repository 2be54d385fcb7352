package replica

import (
	"math"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// Load is an engine's own queue. Negative counts are unknown.
type Load struct {
	// Ongoing counts the requests in the engine, from all sources. The interceptors' count is the minimum.
	Ongoing int
	// Waiting counts those of them that the engine has not started.
	Waiting int
	// UncachedTokens counts their prompt tokens that are neither cached nor prefilled yet.
	UncachedTokens int
}

// load is the replica's load now.
func (r *Replica) load() Load {
	l := Load{Ongoing: -1, Waiting: -1, UncachedTokens: -1}
	if r.cfg.Load != nil {
		l = r.cfg.Load()
	}
	l.Ongoing = max(l.Ongoing, r.Ongoing())
	return l
}

// Fields of OrcaLoadReport, and of an entry of its map named_metrics. They are written by number: the generated code
// would register the names of xDS protos with the model server.
const (
	namedMetrics           = 8
	applicationUtilization = 9
	mapKey                 = 1
	mapValue               = 2
)

// appendMetric writes an entry of named_metrics, unless the value is negative: not known.
func appendMetric(b []byte, name string, value int) []byte {
	if value < 0 {
		return b
	}
	const tag, double = 1, 8 // bytes
	b = protowire.AppendTag(b, namedMetrics, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(tag+protowire.SizeBytes(len(name))+tag+double))
	b = protowire.AppendString(protowire.AppendTag(b, mapKey, protowire.BytesType), name)
	return protowire.AppendFixed64(protowire.AppendTag(b, mapValue, protowire.Fixed64Type), math.Float64bits(float64(value)))
}

// report is the trailer of a call that has ended, and is no longer counted.
func (r *Replica) report() metadata.MD {
	l := r.load()
	b := make([]byte, 0, 192) // the longest report, on the stack
	b = appendMetric(b, warmpathv1.MetricRunning, max(l.Ongoing-max(l.Waiting, 0), 0))
	b = appendMetric(b, warmpathv1.MetricWaiting, l.Waiting)
	b = appendMetric(b, warmpathv1.MetricUncachedTokens, l.UncachedTokens)
	if r.cfg.KVTokens > 0 {
		b = appendMetric(b, warmpathv1.MetricTokenCapacity, r.cfg.KVTokens)
	}
	if r.draining.Load() {
		b = appendMetric(b, warmpathv1.MetricDraining, 1)
	}
	if r.bound > 0 {
		b = protowire.AppendTag(b, applicationUtilization, protowire.Fixed64Type)
		b = protowire.AppendFixed64(b, math.Float64bits(float64(l.Ongoing)/float64(r.bound)))
	}
	return metadata.MD{warmpathv1.TrailerLoad: {string(b)}}
}
