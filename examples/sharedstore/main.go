// Command sharedstore routes by a policy of the application's own, "shared_sessions", that keeps in a look-aside
// server's store which replica each session has, so that all clients agree. The policy is policy.go.
//
//	go run ./cmd/warmpath serve --config examples/look-aside/warmpath.yaml
//	go run ./examples/sharedstore 127.0.0.1:4770 warmpath:///127.0.0.1:50051,127.0.0.1:50052
//
// A server that is slow or down costs at most prepare_timeout, and the calls go on by load.
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
	if len(os.Args) != 3 {
		log.Fatal("usage: sharedstore SERVER TARGET")
	}
	if err := run(context.Background(), os.Stdout, os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer, server, target string) error {
	config := fmt.Sprintf(`{"policy": {"shared_sessions": {"server": %q}}, "prepare_timeout": "200ms"}`, server)
	conn, err := client.New(target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		client.WithConfig(config),
	)
	if err != nil {
		return err
	}
	defer conn.Close()
	stub := pb.NewVllmEngineClient(conn)

	for _, session := range []string{"anna", "bert", "carla", "dora"} {
		var d client.Decision
		ctx := client.WithDecision(client.WithSession(ctx, session), &d)
		stream, err := stub.Generate(ctx, &pb.GenerateRequest{Input: &pb.GenerateRequest_Text{Text: "Hello."}})
		for err == nil {
			_, err = stream.Recv()
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
		fmt.Fprintf(out, "%s: %s (%s)\n", session, d.Replica, d.Reason)
	}
	return nil
}
