package grpcserver

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	commonpb "github.com/warmpath/warmpath/internal/lab/enginesim/enginepb/smg/grpc/common"
	"github.com/warmpath/warmpath/internal/lab/enginesim/kvpublish"
)

// SubscribeKvEvents implements the service as SMG's relay does: numbers begin with 1, a request names the last one that
// is known, 0 asks for all that is there, and a number that was not sent yet is that of an engine before this one.
func (e *engineService) SubscribeKvEvents(r *commonpb.SubscribeKvEventsRequest,
	stream grpc.ServerStreamingServer[commonpb.KvEventBatch]) error {
	log := e.srv.cfg.KVEvents
	if log == nil {
		return status.Error(codes.Unimplemented, "the engine publishes no KV events")
	}
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	next, err := firstBatch(log, r.GetStartSequenceNumber())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(e.srv.stopping, cancel)()
	for b := range log.Follow(ctx, next) {
		if err := stream.Send(batchOf(b)); err != nil {
			return err
		}
	}
	if err := stream.Context().Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.Unavailable, "the engine is stopping")
}

// firstBatch is the log's number of the first batch to send to a subscriber that has all up to a number.
func firstBatch(log *kvpublish.Log, known uint64) (uint64, error) {
	batches, next, _ := log.From(0)
	oldest := next - uint64(len(batches))
	switch {
	case known == 0, known > next:
		return 0, nil
	case known < oldest:
		return 0, status.Errorf(codes.OutOfRange, "batch %d is gone, the oldest is %d", known+1, oldest+1)
	}
	return known, nil
}

func batchOf(b *kvpublish.Batch) *commonpb.KvEventBatch {
	out := &commonpb.KvEventBatch{SequenceNumber: b.Seq + 1, Timestamp: b.At.Seconds(), DpRank: new(int32)}
	for i := range b.Events {
		e := &b.Events[i]
		x := &commonpb.KvCacheEvent{EventId: (b.Seq+1)<<32 | uint64(i)}
		if e.Stored {
			x.Data = &commonpb.KvCacheEvent_Stored{Stored: storedOf(e)}
		} else {
			gone := &commonpb.KvBlocksRemoved{}
			for _, h := range e.Hashes {
				gone.BlockHashes = append(gone.BlockHashes, int64(h))
			}
			x.Data = &commonpb.KvCacheEvent_Removed{Removed: gone}
		}
		out.Events = append(out.Events, x)
	}
	return out
}

func storedOf(e *kvpublish.Event) *commonpb.KvBlocksStored {
	s, size := &commonpb.KvBlocksStored{}, e.BlockSize()
	if e.HasParent {
		parent := int64(e.Parent)
		s.ParentBlockHash = &parent
	}
	for i, h := range e.Hashes {
		s.Blocks = append(s.Blocks, &commonpb.KvBlock{
			BlockHash: int64(h), TokenIds: e.Tokens[i*size : (i+1)*size], BlockSize: int32(size),
		})
	}
	return s
}
