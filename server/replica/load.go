package replica

import (
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"

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
	b := r.appendReport(make([]byte, 0, 192)) // the longest report, on the stack
	return metadata.MD{warmpathv1.TrailerLoad: {string(b)}}
}

// appendReport writes an OrcaLoadReport of now.
func (r *Replica) appendReport(b []byte) []byte {
	l := r.load()
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
	return b
}

// outOfBand is ORCA's service for reports beside calls. Its messages are read and written as unknown fields of an empty
// one, for the same reason.
const outOfBand = "xds.service.orca.v3.OpenRcaService"

// reportEvery is the time between two reports of a stream, which is the least that gRPC's own servers allow.
const reportEvery = 30 * time.Second

// offerLoad makes outOfBand one of the services of s, unless it is there or the load is left out.
func (r *Replica) offerLoad(s *grpc.Server) {
	if _, there := s.GetServiceInfo()[outOfBand]; there || r.cfg.OmitLoad {
		return
	}
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: outOfBand, HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "StreamCoreMetrics", Handler: r.streamLoad, ServerStreams: true}},
	}, r)
}

// streamLoad sends a report at once, and then now and then.
func (r *Replica) streamLoad(_ any, s grpc.ServerStream) error {
	if err := s.RecvMsg(new(emptypb.Empty)); err != nil {
		return err
	}
	for {
		var m emptypb.Empty
		m.ProtoReflect().SetUnknown(r.appendReport(nil))
		if err := s.SendMsg(&m); err != nil {
			return err
		}
		select {
		case <-r.after(reportEvery):
		case <-s.Context().Done():
			return nil
		}
	}
}
