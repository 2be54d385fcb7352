package replica

import (
	"encoding/binary"
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

// A metric is the encoding of an entry of named_metrics, without the eight bytes of its value.
type metric []byte

func metricOf(name string) metric {
	key := protowire.AppendString(protowire.AppendTag(nil, mapKey, protowire.BytesType), name)
	key = protowire.AppendTag(key, mapValue, protowire.Fixed64Type)
	m := protowire.AppendTag(nil, namedMetrics, protowire.BytesType)
	m = protowire.AppendVarint(m, uint64(len(key)+8))
	return append(m, key...)
}

var (
	metricRunning  = metricOf(warmpathv1.MetricRunning)
	metricWaiting  = metricOf(warmpathv1.MetricWaiting)
	metricUncached = metricOf(warmpathv1.MetricUncachedTokens)
	metricCapacity = metricOf(warmpathv1.MetricTokenCapacity)
	metricDraining = metricOf(warmpathv1.MetricDraining)
)

// append writes the metric with a value, unless that is negative: not known.
func (m metric) append(b []byte, value int) []byte {
	if value < 0 {
		return b
	}
	return binary.LittleEndian.AppendUint64(append(b, m...), math.Float64bits(float64(value)))
}

// report is the trailer of a call that has ended, and is no longer counted; nil with OmitLoad.
func (r *Replica) report() metadata.MD {
	if r.cfg.OmitLoad {
		return nil
	}
	l := r.load()
	b := make([]byte, 0, 192) // the longest report, on the stack
	b = metricRunning.append(b, max(l.Ongoing-max(l.Waiting, 0), 0))
	b = metricWaiting.append(b, l.Waiting)
	b = metricUncached.append(b, l.UncachedTokens)
	if r.cfg.KVTokens > 0 {
		b = metricCapacity.append(b, r.cfg.KVTokens)
	}
	if r.draining.Load() {
		b = metricDraining.append(b, 1)
	}
	if r.bound > 0 {
		b = protowire.AppendTag(b, applicationUtilization, protowire.Fixed64Type)
		b = protowire.AppendFixed64(b, math.Float64bits(float64(l.Ongoing)/float64(r.bound)))
	}
	return metadata.MD{warmpathv1.TrailerLoad: {string(b)}}
}
