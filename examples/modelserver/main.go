// Command modelserver is a model server written in Go that is a good replica: it refuses what is too much for it,
// reports how busy it is, registers with look-aside servers, and drains before it ends.
//
//	go run ./examples/modelserver 127.0.0.1:50051 [LOOK-ASIDE SERVER ...]
//
// Its model counts from one. It speaks vLLM's protocol, as the quick start does; yours may speak any.
package main

import (
	"context"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/warmpath/warmpath/balancer/policy"
	pb "github.com/warmpath/warmpath/examples/stubs/vllm/grpc/engine"
	"github.com/warmpath/warmpath/server/replica"
)

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: modelserver ADDRESS [LOOK-ASIDE SERVER ...]")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1], os.Args[2:]...); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, address string, servers ...string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	r, err := replica.New(replica.Config{
		Replica:     policy.Attributes{Models: []string{"numbers"}, MaxOngoing: 8},
		Servers:     servers,
		DialOptions: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())},
	})
	if err != nil {
		return err
	}
	s := grpc.NewServer(r.ServerOptions()...)
	pb.RegisterVllmEngineServer(s, &numbers{})
	return r.Serve(ctx, s, l)
}

// numbers is the model.
type numbers struct {
	pb.UnimplementedVllmEngineServer
}

func (*numbers) Generate(q *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	for i := range q.GetSamplingParams().GetMaxTokens() {
		if err := stream.Send(&pb.GenerateResponse{Response: &pb.GenerateResponse_Chunk{
			Chunk: &pb.GenerateStreamChunk{TokenIds: []uint32{i + 1}},
		}}); err != nil {
			return err
		}
	}
	return nil
}
