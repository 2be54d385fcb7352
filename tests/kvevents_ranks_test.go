package tests

import (
	"context"
	"io"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvevents"
	commonpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/smg/grpc/common"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
)

// manyRanks is a connection whose stream has one batch for each of many ranks, all negative.
type manyRanks struct {
	grpc.ClientConnInterface
	ended chan struct{}
}

func (c *manyRanks) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	return &ranksStream{ctx: ctx, ended: c.ended}, nil
}

type ranksStream struct {
	grpc.ClientStream
	ctx   context.Context
	n     uint64
	ended chan struct{}
}

const ranksSent = 300_000

func (s *ranksStream) SendMsg(any) error { return nil }
func (s *ranksStream) CloseSend() error  { return nil }

func (s *ranksStream) RecvMsg(m any) error {
	if s.n++; s.n > ranksSent {
		if s.n == ranksSent+1 {
			close(s.ended)
		}
		<-s.ctx.Done()
		return io.EOF
	}
	b := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), s.n)
	b = protowire.AppendVarint(protowire.AppendTag(b, 4, protowire.VarintType), -s.n)
	*m.(*[]byte) = b
	return nil
}

// Issue 12.39: negative ranks in KV events are not stored.
func TestNegativeRanksAreNotStored(t *testing.T) {
	conn := &manyRanks{ended: make(chan struct{})}
	m := kvevents.NewManager(kvevents.Options{
		Sink:    func([]policy.CacheChange) {},
		Connect: func(context.Context, string) (grpc.ClientConnInterface, error) { return conn, nil },
	})
	defer m.Close()
	heap := func() uint64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	before := heap()
	m.SetFleet([]policy.Attributes{{ID: "r", KVEvents: "grpc:vllm"}})
	<-conn.ended
	after := heap()
	require.Less(t, max(after, before)-before, uint64(4<<20))
}

// ranksEngine is an engine with several data-parallel ranks behind SMG's server: it takes number 0 alone.
type ranksEngine struct {
	enginepb.UnimplementedVllmEngineServer
	subscriptions chan chan *commonpb.KvEventBatch // one for each
}

func (e *ranksEngine) SubscribeKvEvents(r *commonpb.SubscribeKvEventsRequest, s grpc.ServerStreamingServer[commonpb.KvEventBatch]) error {
	if r.GetStartSequenceNumber() != 0 {
		return status.Error(codes.OutOfRange, "resubscribe with zero and rebuild")
	}
	batches := make(chan *commonpb.KvEventBatch)
	e.subscriptions <- batches
	for {
		select {
		case b := <-batches:
			if err := s.Send(b); err != nil {
				return err
			}
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

// rankBatch is a batch of a rank that stores one block.
func rankBatch(rank int32, seq uint64) *commonpb.KvEventBatch {
	return &commonpb.KvEventBatch{
		SequenceNumber: seq, DpRank: &rank, Load: &commonpb.EngineLoad{RunningRequests: 1},
		Events: []*commonpb.KvCacheEvent{{Data: &commonpb.KvCacheEvent_Stored{Stored: &commonpb.KvBlocksStored{
			Blocks: []*commonpb.KvBlock{{BlockHash: int64(seq + 1), TokenIds: []uint32{uint32(rank), uint32(seq)}, BlockSize: 2}},
		}}}},
	}
}

// A server numbers the events of each rank by itself and refuses to resume. Nothing of it looks like a loss: the cache
// of a rank is cleared if its own numbers have a gap, and is built anew.
func TestKVEventsOfSeveralRanks(t *testing.T) {
	e := &ranksEngine{subscriptions: make(chan chan *commonpb.KvEventBatch)}
	lis := listenLoopback(t)
	srv := grpc.NewServer()
	enginepb.RegisterVllmEngineServer(srv, e)
	go func() { _ = srv.Serve(lis) }()
	t.Cleanup(srv.Stop)
	link := newProxy(t)
	link.to(lis.Addr())
	conn := dialProxy(t, link)

	var mu sync.Mutex
	held := map[int]map[uint64]bool{}
	m := kvevents.NewManager(kvevents.Options{
		Sink: func(changes []policy.CacheChange) {
			mu.Lock()
			defer mu.Unlock()
			for _, c := range changes {
				if held[c.Rank] == nil || c.Cleared {
					held[c.Rank] = map[uint64]bool{}
				}
				for _, h := range c.Stored {
					held[c.Rank][h] = true
				}
			}
		},
		Connect: func(context.Context, string) (grpc.ClientConnInterface, error) { return conn, nil },
	})
	t.Cleanup(m.Close)
	m.SetFleet([]policy.Attributes{{ID: "r", KVEvents: "grpc:vllm", Ranks: 2}})
	holds := func(rank0, rank1 int) {
		t.Helper()
		eventually(t, "blocks of both ranks", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(held[0]) == rank0 && len(held[1]) == rank1
		})
	}
	counts := func(gaps, clears int64) {
		t.Helper()
		st := m.Status()[0]
		require.Equal(t, []int64{gaps, clears, 0}, []int64{st.Gaps, st.Clears, st.Restarts}, "%+v", st)
		require.Empty(t, st.Unreadable)
	}

	sub := <-e.subscriptions
	for seq := range uint64(20) {
		sub <- rankBatch(0, seq)
		sub <- rankBatch(1, seq+7)
		alive := rankBatch(1, seq+7)
		alive.Events, alive.Load.LoadOnly = nil, true
		sub <- alive
	}
	holds(20, 20)
	counts(0, 0)
	require.Equal(t, int64(40), m.Status()[0].Messages, "load alone is no event")

	link.cut()
	sub = <-e.subscriptions
	sub <- rankBatch(1, 27)
	sub <- rankBatch(0, 20)
	holds(21, 21)
	counts(0, 0)

	sub <- rankBatch(1, 29) // 28 is missing
	sub = <-e.subscriptions
	holds(21, 0)
	counts(1, 1)
	for i := range uint32(2) { // a snapshot, and what follows
		b := rankBatch(1, 30+uint64(i))
		b.Snapshot = &commonpb.KvSnapshotChunk{Index: i, Count: 2, Blocks: 2}
		if i == 0 {
			b.Events = append([]*commonpb.KvCacheEvent{{Data: &commonpb.KvCacheEvent_Cleared{Cleared: &commonpb.KvCacheCleared{}}}}, b.Events...)
		}
		sub <- b
	}
	sub <- rankBatch(1, 32)
	sub <- rankBatch(0, 21)
	holds(22, 3)
	counts(1, 1)
}
