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
		if f.Number == fieldLoads && f.Type == protowire.BytesType {
			rank, ok := decodeRank(f.Bytes)
			sum.add(rank)
			ranks, whole = ranks+1, whole && ok
		}
	})
	switch {
	case !ok || !whole:
		return Load{}, errMalformed
	case ranks == 0:
		return Load{}, errNothing
	}
	return sum, nil
}

func decodeRank(b []byte) (l Load, ok bool) {
	var running, waiting, total int
	ok = protofield.Each(b, func(f protofield.Field) {
		if f.Type != protowire.VarintType {
			return
		}
		n := int(min(max(int64(int32(f.Value)), 0), 1<<31-1))
		switch f.Number {
		case fieldRunning:
			running = n
		case fieldWaiting:
			waiting = n
		case fieldTotal:
			total = n
		case fieldTotalTokens:
			l.KVTokens = n
		}
	})
	l.Ongoing = min(max(running+waiting, total), maxRequests)
	return l, ok
}

// add takes another rank of the same engine.
func (l *Load) add(rank Load) {
	l.Ongoing = min(l.Ongoing+rank.Ongoing, maxRequests)
	if l.KVTokens == 0 || rank.KVTokens > 0 && rank.KVTokens < l.KVTokens {
		l.KVTokens = rank.KVTokens
	}
}
