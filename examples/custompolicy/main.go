// Command custompolicy routes by a policy of the application's own, "mine", which asks a
// placement service over HTTP where a session belongs. The policy is policy.go.
//
//	go run ./examples/custompolicy http://127.0.0.1:8080/place warmpath:///127.0.0.1:50051,127.0.0.1:50052
//
// What is heavy or slow belongs into Prepare, which has a deadline; Choose then
// only reads what Prepare left. A service that is slow or down costs at most
// prepare_timeout, and the calls go on by load.
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
		log.Fatal("usage: custompolicy SERVICE TARGET")
	}
	if err := run(context.Background(), os.Stdout, os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer, service, target string) error {
	config := fmt.Sprintf(`{"policy": {"mine": {"url": %q}}, "prepare_timeout": "50ms"}`, service)
	conn, err := client.New(target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		client.WithConfig(config),
	)
	if err != nil {
		return err // also a mistake in the policy's own config, by field
	}
	defer conn.Close()
	stub := pb.NewVllmEngineClient(conn)

	for _, session := range []string{"anna", "bert"} {
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
