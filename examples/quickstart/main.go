// Command quickstart is one call of an ordinary generated stub through warmpath.
//
//	go run ./examples/quickstart warmpath:///127.0.0.1:50051,127.0.0.1:50052
//
// The stub is generated from vLLM's proto, as your own is. Everything that
// warmpath needs of it is in the dial: the import, the target and client.New
// instead of grpc.NewClient.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/warmpath/warmpath/client"
	pb "github.com/warmpath/warmpath/examples/stubs/vllm/grpc/engine"
)

func main() {
	target := "warmpath:///127.0.0.1:50051,127.0.0.1:50052"
	if len(os.Args) > 1 {
		target = os.Args[1]
	}
	if err := run(context.Background(), os.Stdout, target); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer, target string) error {
	conn, err := client.New(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()

	stream, err := pb.NewVllmEngineClient(conn).Generate(ctx, &pb.GenerateRequest{
		Input:          &pb.GenerateRequest_Text{Text: "Why is the sky blue?"},
		SamplingParams: &pb.SamplingParams{MaxTokens: new(uint32(8))},
		Stream:         true,
	})
	if err != nil {
		return err
	}
	for {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if chunk := answer.GetChunk(); chunk != nil {
			fmt.Fprintln(out, chunk.GetTokenIds())
		}
	}
}
