package main

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/warmpath/warmpath/client"
	pb "github.com/warmpath/warmpath/examples/stubs/vllm/grpc/engine"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// lookaside records the heartbeats that it gets.
type lookaside struct {
	warmpathv1.UnimplementedRoutingServiceServer
	got chan *warmpathv1.RegisterRequest
}

func (l *lookaside) Register(_ context.Context, q *warmpathv1.RegisterRequest) (*warmpathv1.RegisterResponse, error) {
	l.got <- q
	return &warmpathv1.RegisterResponse{LeaseMs: 60_000, HeartbeatMs: 20_000}, nil
}

func TestModelServer(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server, known := grpc.NewServer(), &lookaside{got: make(chan *warmpathv1.RegisterRequest, 100)}
	warmpathv1.RegisterRoutingServiceServer(server, known)
	go func() { _ = server.Serve(lis) }() // ends with Stop
	defer server.Stop()

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, "127.0.0.1:0", lis.Addr().String()) }()
	q := <-known.got
	require.Equal(t, []string{"numbers"}, q.GetReplica().GetModels())
	require.EqualValues(t, 8, q.GetReplica().GetMaxOngoingRequests())

	conn, err := client.New("warmpath:///"+q.GetReplica().GetAddress(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	stream, err := pb.NewVllmEngineClient(conn).Generate(t.Context(), &pb.GenerateRequest{
		SamplingParams: &pb.SamplingParams{MaxTokens: new(uint32(3))},
	})
	require.NoError(t, err)
	var got []uint32
	for {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		got = append(got, answer.GetChunk().GetTokenIds()...)
	}
	require.Equal(t, []uint32{1, 2, 3}, got)

	stop()
	require.NoError(t, <-ended)
	var drains, leaves bool
	for len(known.got) > 0 { // there may be heartbeats before
		q := <-known.got
		drains, leaves = drains || q.GetReplica().GetDraining(), q.GetLeaving()
	}
	require.True(t, drains && leaves)
}
