package loadpoll

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
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
	err := conn.Invoke(ctx, method, &request, &answer, grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallRecvMsgSize(maxAnswer))
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
	ranks := 0
	err := eachField(b, func(number protowire.Number, _ uint64, sub []byte) error {
		if number != fieldLoads || sub == nil {
			return nil
		}
		ranks++
		rank, err := decodeRank(sub)
		sum.add(rank)
		return err
	})
	switch {
	case err != nil:
		return Load{}, err
	case ranks == 0:
		return Load{}, errNothing
	}
	return sum, nil
}

func decodeRank(b []byte) (Load, error) {
	var l Load
	var running, waiting, total int
	err := eachField(b, func(number protowire.Number, value uint64, sub []byte) error {
		if sub != nil {
			return nil
		}
		n := int(min(max(int64(int32(value)), 0), 1<<31-1))
		switch number {
		case fieldRunning:
			running = n
		case fieldWaiting:
			waiting = n
		case fieldTotal:
			total = n
		case fieldTotalTokens:
			l.KVTokens = n
		}
		return nil
	})
	l.Ongoing = min(max(running+waiting, total), maxRequests)
	return l, err
}

// add takes another rank of the same engine.
func (l *Load) add(rank Load) {
	l.Ongoing = min(l.Ongoing+rank.Ongoing, maxRequests)
	if l.KVTokens == 0 || rank.KVTokens > 0 && rank.KVTokens < l.KVTokens {
		l.KVTokens = rank.KVTokens
	}
}

// eachField calls f for every varint and every length-delimited field; sub is nil for a varint.
func eachField(b []byte, f func(number protowire.Number, value uint64, sub []byte) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errMalformed
		}
		b = b[n:]
		var value uint64
		var sub []byte
		switch kind {
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			if sub, n = protowire.ConsumeBytes(b); sub == nil {
				sub = []byte{}
			}
		default:
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return errMalformed
		}
		b = b[n:]
		if kind != protowire.VarintType && kind != protowire.BytesType {
			continue
		}
		if err := f(number, value, sub); err != nil {
			return err
		}
	}
	return nil
}

// rawCodec passes encoded messages through.
type rawCodec struct{}

// Marshal implements encoding.CodecV2.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("loadpoll: cannot send a %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("loadpoll: cannot receive a %T", v)
	}
	*b = data.Materialize()
	return nil
}

// Name implements encoding.CodecV2.
func (rawCodec) Name() string { return "proto" }
