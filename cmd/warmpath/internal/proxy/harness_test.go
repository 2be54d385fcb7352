package proxy_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/reflection"

	"github.com/warmpath/warmpath/cmd/warmpath/internal/proxy"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	goleak.VerifyTestMain(m)
}

// replica is a server that a test configures.
type replica struct {
	testpb.UnimplementedTestServiceServer
	at     string
	server *grpc.Server
	health *health.Server

	unary  func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error)
	output func(*testpb.StreamingOutputCallRequest, grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error
	input  func(grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error
	duplex func(grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error
}

func (r *replica) UnaryCall(ctx context.Context, q *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	if r.unary == nil || strings.HasPrefix(string(q.GetPayload().GetBody()), warmUp) {
		return &testpb.SimpleResponse{Payload: q.GetPayload(), Username: r.at}, nil
	}
	return r.unary(ctx, q)
}

func (r *replica) StreamingOutputCall(
	q *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse],
) error {
	return r.output(q, s)
}

func (r *replica) StreamingInputCall(
	s grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse],
) error {
	return r.input(s)
}

func (r *replica) FullDuplexCall(
	s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse],
) error {
	return r.duplex(s)
}

// warmUp is the prefix of prompts that every replica answers with its address.
const warmUp = "warm-up "

// counted answers with the total size of a request's payloads.
func counted(in grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	n := 0
	for {
		m, err := in.Recv()
		if err == io.EOF {
			return in.SendAndClose(&testpb.StreamingInputCallResponse{AggregatedPayloadSize: int32(n)})
		}
		if err != nil {
			return err
		}
		n += len(m.GetPayload().GetBody())
	}
}

// start serves a replica until the test ends.
func start(t testing.TB, r *replica) *replica {
	t.Helper()
	lis := listen(t)
	r.at = lis.Addr().String()
	r.server, r.health = grpc.NewServer(grpc.MaxRecvMsgSize(64<<20)), health.NewServer()
	testpb.RegisterTestServiceServer(r.server, r)
	healthpb.RegisterHealthServer(r.server, r.health)
	reflection.Register(r.server)
	served := make(chan error, 1)
	go func() { served <- r.server.Serve(lis) }()
	t.Cleanup(func() {
		r.server.Stop()
		<-served
	})
	return r
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return lis
}

// through starts a proxy to a target, and returns it with its address.
func through(t testing.TB, target string, options ...grpc.DialOption) (*proxy.Proxy, string) {
	t.Helper()
	p, err := proxy.New(target, append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, options...))
	require.NoError(t, err)
	lis := listen(t)
	served := make(chan error, 1)
	go func() { served <- p.Serve(lis) }()
	t.Cleanup(func() {
		require.NoError(t, p.Close())
		require.NoError(t, <-served)
	})
	return p, lis.Addr().String()
}

func dial(t testing.TB, at string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient(at, append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64 << 20))}, options...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cc.Close()) })
	return cc
}

func deadline(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func payload(text string) *testpb.Payload { return &testpb.Payload{Body: []byte(text)} }

func answer(text string) *testpb.StreamingOutputCallResponse {
	return &testpb.StreamingOutputCallResponse{Payload: payload(text)}
}

func ask(text string) *testpb.StreamingOutputCallRequest {
	return &testpb.StreamingOutputCallRequest{Payload: payload(text)}
}

func input(text string) *testpb.StreamingInputCallRequest {
	return &testpb.StreamingInputCallRequest{Payload: payload(text)}
}
