package tests

import (
	"context"
	"io"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvevents"
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
