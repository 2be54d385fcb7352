// Command printing shows every decision twice: as the application reads it after the
// call, and as it stands on the span of the attempt.
//
//	go run ./examples/printing warmpath:///127.0.0.1:50051,127.0.0.1:50052
//
// The spans are made by otelgrpc; any tracer that makes a span for each attempt
// will do. Without one, warmpath adds an event to the application's own span.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
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
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(printer{out}))
	conn, err := client.New(target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStatsHandler(otelgrpc.NewClientHandler(otelgrpc.WithTracerProvider(tracer))),
	)
	if err != nil {
		return err
	}
	defer conn.Close()
	stub := pb.NewVllmEngineClient(conn)

	conversation := strings.Repeat("You are a helpful assistant for physics. ", 20)
	for _, question := range []string{"Why is the sky blue? ", "And at dusk? ", "And on Mars? "} {
		conversation += question
		if err := ask(ctx, out, stub, conversation); err != nil {
			return err
		}
	}
	return tracer.Shutdown(ctx)
}

// ask makes one call and prints where it went and why.
func ask(ctx context.Context, out io.Writer, stub pb.VllmEngineClient, prompt string) error {
	var d client.Decision
	stream, err := stub.Generate(client.WithDecision(ctx, &d),
		&pb.GenerateRequest{Input: &pb.GenerateRequest_Text{Text: prompt}})
	for err == nil {
		_, err = stream.Recv()
	}
	if !errors.Is(err, io.EOF) {
		return err
	}
	_, err = fmt.Fprintf(out, "decision: %s by %s (%s), %d of %d tokens expected in its cache, %d were\n",
		d.Replica, d.Policy, d.Reason, d.MatchedTokens, d.PromptTokens, d.Usage.CachedTokens)
	return err
}

// printer is a span exporter that prints warmpath's attributes.
type printer struct{ out io.Writer }

func (p printer) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	for _, s := range spans {
		fmt.Fprintf(p.out, "span: %s", s.Name())
		for _, a := range s.Attributes() {
			if strings.HasPrefix(string(a.Key), "warmpath.") {
				fmt.Fprintf(p.out, " %s=%s", a.Key, a.Value.String())
			}
		}
		fmt.Fprintln(p.out)
	}
	return nil
}

func (printer) Shutdown(context.Context) error { return nil }
