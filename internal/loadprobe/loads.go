package loadprobe

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/internal/protofield"
	"github.com/warmpath/warmpath/internal/router/load"
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
