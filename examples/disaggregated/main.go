// Command disaggregated sends prompts to a fleet whose prefill and decode are on
// different replicas. The fleet file has a role and a pair label for each.
//
//	go run ./examples/disaggregated examples/disaggregated/vllm.yaml
//	go run ./examples/disaggregated examples/disaggregated/sglang.yaml
//
// To the program each request is one call of its stub.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/client"
	sglangpb "github.com/warmpath/warmpath/examples/stubs/sglang/grpc/scheduler"
	vllmpb "github.com/warmpath/warmpath/examples/stubs/vllm/grpc/engine"
	_ "github.com/warmpath/warmpath/resolver/file"
)

// Each of the workers sends one request after the other.
const (
	workers  = 8
	requests = 4 * workers
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: disaggregated FILE")
	}
	if err := run(context.Background(), os.Args[1], os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// run sends the requests and prints where each was served.
func run(ctx context.Context, file string, out io.Writer) error {
	path, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	conn, err := client.New("warmpath-file://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ask := vllm
	if strings.HasPrefix(filepath.Base(file), "sglang") {
		ask = sglang
	}
	var all sync.WaitGroup
	decisions, errs := make([]client.Decision, requests), make([]error, requests)
	for w := range workers {
		all.Go(func() {
			for i := w; i < requests; i += workers {
				errs[i] = ask(client.WithDecision(ctx, &decisions[i]), conn, fmt.Sprint("request ", i), prompt(i))
			}
		})
	}
	all.Wait()
	for i, d := range decisions {
		where := "whole on " + d.Replica
		if d.Prefill != "" {
			where = "prefill on " + d.Prefill + ", decode on " + d.Replica
		}
		fmt.Fprintf(out, "request %d: %s\n", i, where)
	}
	return errors.Join(errs...)
}

// prompt is 4,000 tokens that no other prompt begins with.
func prompt(n int) []uint32 {
	ids := make([]uint32, 4000)
	for i := range ids {
		ids[i] = uint32(n*len(ids) + i)
	}
	return ids
}

// vllm sends a prompt to vLLM's engines.
func vllm(ctx context.Context, conn *grpc.ClientConn, id string, ids []uint32) error {
	stream, err := vllmpb.NewVllmEngineClient(conn).Generate(ctx, &vllmpb.GenerateRequest{
		RequestId: id, Stream: true, SamplingParams: &vllmpb.SamplingParams{MaxTokens: proto.Uint32(256)},
		Input: &vllmpb.GenerateRequest_Tokenized{Tokenized: &vllmpb.TokenizedInput{InputIds: ids}},
	})
	return drain(stream, err)
}

// sglang sends a prompt to SGLang's engines.
func sglang(ctx context.Context, conn *grpc.ClientConn, id string, ids []uint32) error {
	stream, err := sglangpb.NewSglangSchedulerClient(conn).Generate(ctx, &sglangpb.GenerateRequest{
		RequestId: id, SamplingParams: &sglangpb.SamplingParams{MaxNewTokens: proto.Uint32(256)},
		Tokenized: &sglangpb.TokenizedInput{InputIds: ids},
	})
	return drain(stream, err)
}

// drain reads an answer to its end.
func drain[M any](stream grpc.ServerStreamingClient[M], err error) error {
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
