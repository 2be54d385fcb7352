// Command ownstubs is an application with generated stubs of its own for vLLM and for
// SGLang, which links warmpath's client and runs: nothing that warmpath links
// registers a proto name of an engine. If something did, this program would panic
// before main.
//
// It starts servers of both kinds on loopback, calls them through warmpath, prints
// where each call went and why, and exits with 0.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/examples/stubs/fake"
	sglangpb "github.com/warmpath/warmpath/examples/stubs/sglang/grpc/scheduler"
	vllmpb "github.com/warmpath/warmpath/examples/stubs/vllm/grpc/engine"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer) error {
	target, _, stop, err := fake.Fleet(3)
	if err != nil {
		return err
	}
	defer stop()
	conn, err := client.New(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()

	prompt := make([]uint32, 200)
	for i := range prompt {
		prompt[i] = uint32(i)
	}
	for turn := range 3 {
		ids := prompt[:100+50*turn]
		var d client.Decision
		ctx := client.WithDecision(ctx, &d)
		s, err := vllmpb.NewVllmEngineClient(conn).Generate(ctx, &vllmpb.GenerateRequest{
			Input: &vllmpb.GenerateRequest_Tokenized{Tokenized: &vllmpb.TokenizedInput{InputIds: ids}},
		})
		if err := drain(s, err); err != nil {
			return fmt.Errorf("vLLM: %w", err)
		}
		tell(out, "vllm", d)
	}
	for turn := range 3 {
		ids := prompt[50 : 100+50*turn]
		var d client.Decision
		ctx := client.WithDecision(ctx, &d)
		s, err := sglangpb.NewSglangSchedulerClient(conn).Generate(ctx, &sglangpb.GenerateRequest{
			Tokenized: &sglangpb.TokenizedInput{InputIds: ids},
		})
		if err := drain(s, err); err != nil {
			return fmt.Errorf("SGLang: %w", err)
		}
		tell(out, "sglang", d)
	}
	return nil
}

// drain reads a stream to its end.
func drain[T any](s grpc.ServerStreamingClient[T], err error) error {
	for err == nil {
		_, err = s.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func tell(out io.Writer, engine string, d client.Decision) {
	fmt.Fprintf(out, "%s %s %s matched=%d cached=%d of %d\n", engine, d.Replica, d.Reason, d.MatchedTokens, d.Usage.CachedTokens, d.PromptTokens)
}
