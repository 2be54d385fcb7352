package loadprobe

import (
	"context"
	"errors"
	"math"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/internal/protofield"
	"github.com/warmpath/warmpath/internal/router/load"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// MaxAnswer bounds an answer in bytes.
const MaxAnswer = 4 << 20

// maxRequests bounds what one engine may report.
const maxRequests = 1 << 20

// Errors of answers.
var (
	ErrNothing   = errors.New("the answer has neither a count of requests nor of tokens")
	ErrMalformed = errors.New("the answer cannot be read")
)

// loads calls GetLoads.
func loads(ctx context.Context, conn grpc.ClientConnInterface, method string) (load.Report, error) {
	var request, answer []byte
	err := conn.Invoke(ctx, method, &request, &answer, protofield.Raw(), grpc.MaxCallRecvMsgSize(MaxAnswer))
	if err != nil {
		return load.Report{}, err
	}
	return decodeLoads(answer)
}

// Fields of GetLoadsResponse and of one of its loads.
const (
	fieldLoads       = 4
	fieldRunning     = 2
	fieldWaiting     = 3
	fieldTotal       = 4
	fieldTotalTokens = 6
)

// decodeLoads adds up the loads of an engine's ranks.
func decodeLoads(b []byte) (load.Report, error) {
	sum := load.Report{QueuedTokens: -1}
	ranks, whole := 0, true
	ok := protofield.Each(b, func(f protofield.Field) {
		if f.Number != fieldLoads || f.Type != protowire.BytesType {
			return
		}
		var n [fieldTotalTokens + 1]int
		rank := protofield.Each(f.Bytes, func(f protofield.Field) {
			if f.Type == protowire.VarintType && int(f.Number) < len(n) {
				n[f.Number] = int(max(int32(f.Value), 0))
			}
		})
		AddRank(&sum, max(n[fieldRunning]+n[fieldWaiting], n[fieldTotal]), n[fieldTotalTokens])
		sum.Waiting = min(sum.Waiting+n[fieldWaiting], maxRequests)
		ranks, whole = ranks+1, whole && rank
	})
	switch {
	case !ok || !whole:
		return load.Report{}, ErrMalformed
	case ranks == 0:
		return load.Report{}, ErrNothing
	}
	return sum, nil
}

// AddRank takes another rank of the same engine. The smallest cache counts.
func AddRank(l *load.Report, ongoing, kvTokens int) {
	l.Ongoing = min(l.Ongoing+ongoing, maxRequests)
	if l.KVTokens == 0 || kvTokens > 0 && kvTokens < l.KVTokens {
		l.KVTokens = kvTokens
	}
}

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
