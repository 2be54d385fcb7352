package loadpoll

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/internal/protofield"
)

// A Load is what an engine reports of itself.
type Load struct {
	Ongoing  int // requests that run and wait
	KVTokens int // size of the KV cache of one rank in tokens; 0 = not reported
}

// maxAnswer bounds an answer in bytes.
const maxAnswer = 4 << 20

// maxRequests bounds what one engine may report.
const maxRequests = 1 << 20

var (
	errNothing   = errors.New("the answer has no count of requests under way")
	errMalformed = errors.New("the answer cannot be read")
)

// ask calls GetLoads.
func ask(ctx context.Context, conn grpc.ClientConnInterface, method string) (Load, error) {
	var request, answer []byte
	err := conn.Invoke(ctx, method, &request, &answer, protofield.Raw(), grpc.MaxCallRecvMsgSize(maxAnswer))
	if err != nil {
		return Load{}, err
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
func decodeLoads(b []byte) (Load, error) {
	var sum Load
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
		sum.add(max(n[fieldRunning]+n[fieldWaiting], n[fieldTotal]), n[fieldTotalTokens])
		ranks, whole = ranks+1, whole && rank
	})
	switch {
	case !ok || !whole:
		return Load{}, errMalformed
	case ranks == 0:
		return Load{}, errNothing
	}
	return sum, nil
}

// add takes another rank of the same engine.
func (l *Load) add(ongoing, kvTokens int) {
	l.Ongoing = min(l.Ongoing+ongoing, maxRequests)
	if l.KVTokens == 0 || kvTokens > 0 && kvTokens < l.KVTokens {
		l.KVTokens = kvTokens
	}
}
