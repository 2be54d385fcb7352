package extproc_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/cmd/warmpath/internal/extproc"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
	"github.com/warmpath/warmpath/lab/enginesim/kvpublish"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// An engine serves requests from gateways.
type engine struct {
	address string
	stub    enginepb.VllmEngineClient
}

func startEngine(t *testing.T) engine {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s, err := grpcserver.Start(lis, grpcserver.Config{Speed: 10, KVEvents: kvpublish.NewLog(0), KVHistory: true})
	require.NoError(t, err)
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		s.Kill()
	})
	return engine{lis.Addr().String(), enginepb.NewVllmEngineClient(conn)}
}

// tokens is a request with the prompt of a number.
func tokens(n, output int) *enginepb.GenerateRequest {
	ids := make([]uint32, 1024)
	for i := range ids {
		ids[i] = uint32(n*len(ids) + i)
	}
	return &enginepb.GenerateRequest{
		RequestId: fmt.Sprint("prompt ", n), Stream: true, SamplingParams: &enginepb.SamplingParams{MaxTokens: proto.Uint32(uint32(output))},
		Input: &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: ids}},
	}
}

// destination is the replica that a gateway's request is routed to.
func (p *picker) destination(t *testing.T, q *enginepb.GenerateRequest) string {
	t.Helper()
	raw, err := proto.Marshal(q)
	require.NoError(t, err)
	g := p.open(t, duplex)
	g.headers(grpcHeaders(), nil, false)
	g.body(frame(raw), true)
	to := g.picked()
	g.echoed(frame(raw), true)
	g.responds("200", "application/grpc", to[0], true, "grpc-status", "0")
	g.done()
	return to[0]
}

// A restarted server learns the engines' cache contents and load from their events and reports.
func TestRestart(t *testing.T) {
	const prompts = 8
	engines := []engine{startEngine(t), startEngine(t)}
	for n := range prompts {
		stream, err := engines[n%2].stub.Generate(t.Context(), tokens(n, 1))
		for err == nil {
			_, err = stream.Recv()
		}
		require.ErrorIs(t, err, io.EOF)
	}
	config := fmt.Sprintf(`
load_interval: 10ms
deployments:
  chat:
    policy: {kv_aware: {}}
    kv_events: "grpc:vllm"
    load_poll: "grpc:vllm"
    replicas: [{id: a, address: %q}, {id: b, address: %q}]
`, engines[0].address, engines[1].address)
	for _, name := range []string{"first", "again"} {
		t.Run(name, func(t *testing.T) {
			p := startPicker(t, config, extproc.Options{Fallbacks: 2}, nil)
			learned := func(what string, is func(r *warmpathv1.ReplicaStatus) bool) {
				require.Eventually(t, func() bool {
					return slices.ContainsFunc(p.deployment(t).GetReplicas(), is)
				}, 30*time.Second, 5*time.Millisecond, what)
			}
			for _, id := range []string{"a", "b"} { // each has half of the prompts, in blocks of 16 tokens
				learned("events of "+id, func(r *warmpathv1.ReplicaStatus) bool {
					return r.GetId() == id && r.GetEvents().GetBlocks() >= prompts/2*1024/16
				})
			}
			for n := range prompts {
				require.Equal(t, engines[n%2].address, p.destination(t, tokens(n, 1)), "prompt %d", n)
			}
			p.idle(t)

			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for n := range 4 { // sent directly, not through the server
				stream, err := engines[0].stub.Generate(ctx, tokens(100+n, 50_000))
				require.NoError(t, err)
				_, err = stream.Recv()
				require.NoError(t, err)
			}
			learned("reports", func(r *warmpathv1.ReplicaStatus) bool { return r.GetId() == "a" && r.GetOngoing() >= 4 })
			require.Equal(t, engines[1].address, p.destination(t, tokens(200, 1)), "the idle one")
			cancel()
			p.idle(t)
		})
	}
}
