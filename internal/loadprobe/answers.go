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

// ask calls a method without a request.
func ask(ctx context.Context, conn grpc.ClientConnInterface, q *question) (load.Report, error) {
	var request, answer []byte
	err := conn.Invoke(ctx, q.method, &request, &answer, protofield.Raw(), grpc.MaxCallRecvMsgSize(MaxAnswer))
	if err != nil {
		return load.Report{}, err
	}
	return q.decode(answer)
}

// Fields of GetLoadsResponse and of one of its loads.
const (
	fieldLoads       = 4
	fieldRunning     = 2
	fieldWaiting     = 3
	fieldTotal       = 4
	fieldTotalTokens = 6
	maxField         = 17
)

// loadsWith decodes GetLoadsResponse. The field has the uncached tokens of requests that wait.
func loadsWith(uncached protowire.Number) func(b []byte) (load.Report, error) {
	return func(b []byte) (load.Report, error) { return decodeLoads(b, uncached) }
}

// decodeLoads adds up the loads of an engine's ranks. A zero is not encoded: an engine without uncached tokens looks
// like one that does not report any.
func decodeLoads(b []byte, uncached protowire.Number) (load.Report, error) {
	sum := load.Report{QueuedTokens: -1}
	ranks, whole, tokens := 0, true, int64(0)
	ok := protofield.Each(b, func(f protofield.Field) {
		if f.Number != fieldLoads || f.Type != protowire.BytesType {
			return
		}
		var n [maxField + 1]int
		rank := protofield.Each(f.Bytes, func(f protofield.Field) {
			if f.Type == protowire.VarintType && int(f.Number) < len(n) {
				n[f.Number] = int(max(int32(f.Value), 0))
			}
		})
		AddRank(&sum, max(n[fieldRunning]+n[fieldWaiting], n[fieldTotal]), n[fieldTotalTokens])
		sum.Waiting = min(sum.Waiting+n[fieldWaiting], maxRequests)
		tokens += int64(n[uncached])
		ranks, whole = ranks+1, whole && rank
	})
	switch {
	case !ok || !whole:
		return load.Report{}, ErrMalformed
	case ranks == 0:
		return load.Report{}, ErrNothing
	}
	if tokens > 0 {
		sum.QueuedTokens = tokens
	}
	return sum, nil
}

// decodeLoad reads OpenEngine's LoadInfo: the counts of the engine, else those of its ranks.
func decodeLoad(b []byte) (load.Report, error) {
	const running, waiting, tokens, ranks, rankRunning, rankWaiting = 3, 4, 9, 20, 2, 3
	report := load.Report{Ongoing: -1, QueuedTokens: -1}
	count := func(f protofield.Field) int { return int(min(f.Value, maxRequests)) }
	add := func(fields map[protowire.Number]protofield.Field, running, waiting protowire.Number) {
		r, runs := fields[running]
		w, waits := fields[waiting]
		if runs || waits {
			report.Ongoing = min(max(report.Ongoing, 0)+count(r)+count(w), maxRequests)
			report.Waiting = min(report.Waiting+count(w), maxRequests)
		}
	}
	fields, whole := protofield.Last(b)
	if add(fields, running, waiting); report.Ongoing < 0 {
		protofield.Each(b, func(f protofield.Field) {
			if f.Number == ranks {
				rank, ok := protofield.Last(f.Bytes)
				whole = whole && ok
				add(rank, rankRunning, rankWaiting)
			}
		})
	}
	if f, ok := fields[tokens]; ok {
		report.QueuedTokens = int64(min(f.Value, 1<<40))
	}
	switch {
	case !whole:
		return load.Report{}, ErrMalformed
	case report.Ongoing < 0 && report.QueuedTokens < 0:
		return load.Report{}, ErrNothing
	}
	return report, nil
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
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, orcaMethod, protofield.Raw(),
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
