package loadprobe

import (
	"context"
	"math"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/internal/protofield"
	"github.com/warmpath/warmpath/internal/router/load"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// core calls StreamCoreMetrics for its first report, which comes at once.
func core(ctx context.Context, conn grpc.ClientConnInterface) (load.Report, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, methods[outOfBand], protofield.Raw(),
		grpc.MaxCallRecvMsgSize(MaxAnswer))
	if err != nil {
		return load.Report{}, err
	}
	var request, answer []byte
	_ = stream.SendMsg(&request) // the only message; where it fails, so does RecvMsg
	if err = stream.RecvMsg(&answer); err != nil {
		return load.Report{}, err
	}
	report := ParseOrca(answer)
	if report.Ongoing < 0 && report.QueuedTokens < 0 {
		err = ErrNothing
	}
	return report, err
}

// namedMetrics is the field of OrcaLoadReport with the metrics that applications name: a
// map, and so a repeated message of key and value.
const (
	namedMetrics = 8
	mapKey       = 1
	mapValue     = 2
)

// ParseOrca reads a serialised OrcaLoadReport (gRFC A51) as far as it is one, by field
// number: grpc's orca package would register the names of xDS protos with the application.
func ParseOrca(b []byte) load.Report {
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
	report.Waiting = max(int(values[waiting]), 0)
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
