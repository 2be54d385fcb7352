// Command otlp sends spans to an OpenTelemetry collector, with warmpath's decisions on them.
//
//	OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317 \
//		go run ./examples/otlp warmpath:///127.0.0.1:50051,127.0.0.1:50052
//
// There is nothing of warmpath's to set up: otelgrpc makes a span for each
// attempt, and warmpath writes its attributes there. No prompt leaves the process,
// and a session only as a hash.
package main

import (
	"context"
	"errors"
	"io"
	"log"
	"os"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
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
	if err := run(context.Background(), target, "user_42", "Why is the sky blue?"); err != nil {
		log.Fatal(err)
	}
}

// run asks one question. The exporter finds its collector in the environment,
// unless options say otherwise.
func run(ctx context.Context, target, session, prompt string, options ...otlptracegrpc.Option) (err error) {
	exporter, err := otlptracegrpc.New(ctx, options...)
	if err != nil {
		return err
	}
	tracer := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter))
	defer func() { err = errors.Join(err, tracer.Shutdown(ctx)) }() // sends what is left

	conn, err := client.New(target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStatsHandler(otelgrpc.NewClientHandler(otelgrpc.WithTracerProvider(tracer))),
	)
	if err != nil {
		return err
	}
	defer conn.Close()

	ctx = client.WithSession(ctx, session)
	stream, err := pb.NewVllmEngineClient(conn).Generate(ctx,
		&pb.GenerateRequest{Input: &pb.GenerateRequest_Text{Text: prompt}})
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
