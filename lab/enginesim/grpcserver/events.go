package grpcserver

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	commonpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/smg/grpc/common"
	"github.com/warmpath/warmpath/lab/enginesim/kvpublish"
)

// heartbeat is how long a stream of events is silent before it repeats the engine's load.
const heartbeat = time.Second

// SubscribeKvEvents implements the service as SMG's servers do: only number 0 is taken, every batch has the engine's
// load, and between batches the load comes alone.
func (e *engineService) SubscribeKvEvents(r *commonpb.SubscribeKvEventsRequest,
	stream grpc.ServerStreamingServer[commonpb.KvEventBatch]) error {
	log := e.srv.cfg.KVEvents
	switch {
	case log == nil:
		return status.Error(codes.Unimplemented, "the engine publishes no KV events")
	case r.GetStartSequenceNumber() != 0:
		return status.Error(codes.OutOfRange, "KV event cursors are per subscription; resubscribe with zero and rebuild")
	}
	next := log.Next()
	if e.srv.cfg.KVHistory {
		next = 0
	}
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	timer := time.NewTimer(heartbeat)
	defer timer.Stop()
	var alive *commonpb.KvEventBatch // nil before the first batch
	for sample := uint64(1); ; sample++ {
		batches, to, more := log.From(next)
		for i := range batches {
			b := batchOf(&batches[i])
			b.Load = e.srv.eventLoad()
			b.Load.Sample = sample
			if err := stream.Send(b); err != nil {
				return err
			}
			alive = &commonpb.KvEventBatch{SequenceNumber: b.SequenceNumber, DpRank: b.DpRank}
			sample++
		}
		next = to
		timer.Reset(heartbeat)
		select {
		case <-more:
		case <-timer.C:
			if alive == nil {
				continue
			}
			alive.Load = e.srv.eventLoad()
			alive.Load.Sample, alive.Load.LoadOnly = sample, true
			if err := stream.Send(alive); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-e.srv.stopping.Done():
			return status.Error(codes.Unavailable, "the engine is stopping")
		}
	}
}

// eventLoad is the load as it stands in batches of events.
func (s *Server) eventLoad() *commonpb.EngineLoad {
	st := s.Stats()
	return &commonpb.EngineLoad{
		RunningRequests: uint32(st.Load.Running), WaitingRequests: uint32(st.Load.Waiting),
		TokenUsage: ratio(st.Load.UsedTokens, st.Load.TotalTokens), MaxRunningRequests: uint32(st.Load.MaxSequences),
	}
}

func batchOf(b *kvpublish.Batch) *commonpb.KvEventBatch {
	out := &commonpb.KvEventBatch{SequenceNumber: b.Seq, Timestamp: b.At.Seconds(), DpRank: new(int32)}
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
	s, size := &commonpb.KvBlocksStored{Tier: proto.Int32(1)}, e.BlockSize()
	if e.Adapter != "" {
		s.LoraName = &e.Adapter
	}
	if e.CacheSalt != "" {
		s.CacheSalt = &e.CacheSalt
	}
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
