package tests

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
	_ "github.com/warmpath/warmpath/resolver/file"
)

func TestMain(m *testing.M) {
	if n := os.Getenv(costServers); n != "" {
		serveCost(n)
		return
	}
	goleak.VerifyTestMain(m)
}

// The methods of gRPC's own test service, and a dialect that reads its payload
// as the prompt.
const (
	unaryMethod     = "/grpc.testing.TestService/UnaryCall"
	streamingMethod = "/grpc.testing.TestService/StreamingOutputCall"
	dialects        = `[{"methods":["` + unaryMethod + `","` + streamingMethod + `"],"prompt":"3.2"}]`
)

// config returns a service config object with the test dialect.
func config(policy string, more ...string) string {
	s := `{"policy":` + policy + `,"dialects":` + dialects
	for _, m := range more {
		s += "," + m
	}
	return s + "}"
}

// replica is a test server that a test configures.
type replica struct {
	testpb.UnimplementedTestServiceServer
	addr   string
	server *grpc.Server
	beside func(*grpc.Server) // registers additional services

	unary  func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error)
	stream func(*testpb.StreamingOutputCallRequest, grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error
	duplex func(grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error
	upload func(grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error

	calls atomic.Int64
}

func (r *replica) UnaryCall(ctx context.Context, q *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	r.calls.Add(1)
	if r.unary != nil {
		return r.unary(ctx, q)
	}
	return &testpb.SimpleResponse{Username: r.addr}, nil
}

func (r *replica) StreamingOutputCall(q *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	r.calls.Add(1)
	if r.stream != nil {
		return r.stream(q, s)
	}
	return s.Send(answer(r.addr))
}

func (r *replica) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	r.calls.Add(1)
	if r.duplex != nil {
		return r.duplex(s)
	}
	for {
		if _, err := s.Recv(); err != nil {
			return nil
		}
		if err := s.Send(answer(r.addr)); err != nil {
			return err
		}
	}
}

func (r *replica) StreamingInputCall(s grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	r.calls.Add(1)
	if r.upload != nil {
		return r.upload(s)
	}
	return r.UnimplementedTestServiceServer.StreamingInputCall(s)
}

func answer(text string) *testpb.StreamingOutputCallResponse {
	return &testpb.StreamingOutputCallResponse{Payload: &testpb.Payload{Body: []byte(text)}}
}

func prompt(text string) *testpb.StreamingOutputCallRequest {
	return &testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: []byte(text)}}
}

func simple(text string) *testpb.SimpleRequest {
	return &testpb.SimpleRequest{Payload: &testpb.Payload{Body: []byte(text)}}
}

// start serves a replica on loopback until the test ends.
func start(t testing.TB, r *replica, opts ...grpc.ServerOption) *replica {
	t.Helper()
	l := listenLoopback(t)
	r.serve(l, opts...)
	t.Cleanup(func() { r.server.Stop() })
	return r
}

func (r *replica) serve(l net.Listener, opts ...grpc.ServerOption) {
	r.addr = l.Addr().String()
	r.server = grpc.NewServer(append([]grpc.ServerOption{grpc.MaxRecvMsgSize(64 << 20)}, opts...)...)
	testpb.RegisterTestServiceServer(r.server, r)
	if r.beside != nil {
		r.beside(r.server)
	}
	go func() { _ = r.server.Serve(l) }()
}

// everyMethod serves all methods but those of grpc.health.v1, which the server does not have.
func everyMethod(serve grpc.StreamHandler) grpc.ServerOption {
	return grpc.UnknownServiceHandler(func(srv any, s grpc.ServerStream) error {
		if method, _ := grpc.MethodFromServerStream(s); strings.HasPrefix(method, "/grpc.health.v1.") {
			return status.Error(codes.Unimplemented, method)
		}
		return serve(srv, s)
	})
}

// replicas starts n of them.
func replicas(t testing.TB, n int) []*replica {
	rs := make([]*replica, n)
	for i := range rs {
		rs[i] = start(t, &replica{})
	}
	return rs
}

func target(rs ...*replica) string {
	s := "warmpath:///"
	for i, r := range rs {
		if i > 0 {
			s += ","
		}
		s += r.addr
	}
	return s
}

// dial opens a channel that is closed with the test.
func dial(t testing.TB, target string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	opts = append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, opts...)
	cc, err := client.New(target, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cc.Close()) })
	return cc
}

// deadline returns a context that ends, so that a test that hangs fails.
func deadline(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// meter is a metrics reader for one channel.
type meter struct {
	reader *sdkmetric.ManualReader
	option grpc.DialOption
}

func newMeter(t testing.TB) *meter {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	mp := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	t.Cleanup(func() { _ = mp.Shutdown(context.Background()) })
	return &meter{reader: reader, option: client.WithMeterProvider(mp)}
}

// sum adds up the points of an integer metric that carry all attributes given.
func (m *meter) sum(t testing.TB, name string, attrs ...attribute.KeyValue) int64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, m.reader.Collect(context.Background(), &rm))
	var total int64
	add := func(points []metricdata.DataPoint[int64]) {
		for _, p := range points {
			match := true
			for _, a := range attrs {
				v, ok := p.Attributes.Value(a.Key)
				match = match && ok && v == a.Value
			}
			if match {
				total += p.Value
			}
		}
	}
	for _, s := range rm.ScopeMetrics {
		for _, metric := range s.Metrics {
			if metric.Name != name {
				continue
			}
			switch d := metric.Data.(type) {
			case metricdata.Sum[int64]:
				add(d.DataPoints)
			case metricdata.Gauge[int64]:
				add(d.DataPoints)
			default:
				t.Fatalf("%s is a %T", name, d)
			}
		}
	}
	return total
}

// ongoing is the number of reservations that the channel holds.
func (m *meter) ongoing(t testing.TB) int64 { return m.sum(t, "warmpath.replica.ongoing") }

// eventually polls without asserting how long it takes.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, time.Minute, 2*time.Millisecond, what)
}

// connected waits until the channel has connections to all replicas.
func connected(t testing.TB, cc *grpc.ClientConn, rs []*replica) {
	t.Helper()
	stub := testpb.NewTestServiceClient(cc)
	ctx := deadline(t)
	for _, r := range rs {
		eventually(t, fmt.Sprintf("connection to %s", r.addr), func() bool {
			reply, err := stub.UnaryCall(client.WithPin(ctx, r.addr), simple(""), grpc.WaitForReady(true))
			return err == nil && reply.Username == r.addr
		})
	}
	for _, r := range rs {
		r.calls.Store(0)
	}
}

func insecureOption() grpc.DialOption {
	return grpc.WithTransportCredentials(insecure.NewCredentials())
}

// needs skips a test if a program that it needs is missing. With WARMPATH_REQUIRE_ALL the test fails instead.
func needs(t testing.TB, what string, err error) {
	t.Helper()
	switch {
	case err == nil:
	case os.Getenv("WARMPATH_REQUIRE_ALL") != "":
		t.Fatalf("%s is not installed: %v", what, err)
	default:
		t.Skipf("%s is not installed: %v", what, err)
	}
}
