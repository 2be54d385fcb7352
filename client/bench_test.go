package client

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/call"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/router"
)

// instant is a stream that answers one message without a network; opening it
// claims the held as a picker would.
type instant struct {
	ctx  context.Context
	call *call.Call
	n    int
}

func (s *instant) Header() (metadata.MD, error) { return nil, nil }
func (s *instant) Trailer() metadata.MD         { return nil }
func (s *instant) CloseSend() error             { return nil }
func (s *instant) Context() context.Context     { return s.ctx }
func (s *instant) SendMsg(any) error            { return nil }
func (s *instant) RecvMsg(any) error {
	if s.n++; s.n == 1 {
		return nil
	}
	s.call.Finished(balancer.DoneInfo{BytesSent: true, BytesReceived: true})
	return io.EOF
}

// bound returns interceptors whose one channel is bound to a Router of 8 replicas that are always ready, and a
// function that claims the held of a call as a picker does.
func bound(tb testing.TB, object string) (set *channels, cc *grpc.ClientConn, rt *router.Router, claim func(context.Context) *call.Call) {
	set, err := newChannels[Option](nil)
	require.NoError(tb, err)
	cc, err = grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, cc.Close()) })
	config, err := policy.ParseConfig([]byte(object))
	require.NoError(tb, err)
	rt, err = router.FromConfig(config, nil)
	require.NoError(tb, err)
	var members []router.Member
	for i := range 8 {
		members = append(members, router.Member{Attributes: policy.Attributes{ID: fmt.Sprint("r", i)}})
	}
	rt.Fleet.Set(members)
	for _, m := range members {
		rt.Fleet.SetConnected(m.ID, true)
	}
	table, err := requestkey.NewTable(dialect.Dialect{Methods: []string{"/p.S/M"}, Prompt: "3.2"})
	require.NoError(tb, err)
	keys := requestkey.NewSessionKeys()
	binding := &call.Binding{
		Router: rt, Policy: "p", Uses: rt.Uses(), Dialects: table, SessionKeys: keys,
		Telemetry: set.telemetry, Config: config,
	}
	set.sole.Store(set.handle(cc)) // as New does
	set.sole.Load().Bind(nil, binding, nil)
	ready := func(*policy.Replica) connectivity.State { return connectivity.Ready }
	return set, cc, rt, func(ctx context.Context) *call.Call {
		scope, _ := call.From(ctx)
		call := scope.Enter()
		defer scope.Leave()
		if _, _, err := call.Claim(ctx, nil, binding, ready); err != nil {
			tb.Fatal(err)
		}
		return call
	}
}

// BenchmarkInterceptors is the cost that warmpath adds to a call: the interceptor, the request key, the policy,
// the held, and their release.
func BenchmarkInterceptors(b *testing.B) {
	for _, name := range []string{"kv_aware", "power_of_two_choices"} {
		set, cc, _, claim := bound(b, fmt.Sprintf(`{"policy":{%q:{}}}`, name))
		for _, size := range []int{128, 32 << 10} {
			benchmarkInterceptors(b, name, &testpb.Payload{Body: []byte(strings.Repeat("x", size))}, set, cc, claim)
		}
	}
}

func benchmarkInterceptors(
	b *testing.B, name string, body *testpb.Payload, set *channels, cc *grpc.ClientConn, claim func(context.Context) *call.Call,
) {
	b.Run(fmt.Sprintf("unary/%dB/%s", len(body.Body), name), func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			err := set.unary(context.Background(), "/p.S/M", &testpb.SimpleRequest{Payload: body}, &testpb.SimpleResponse{}, cc,
				func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
					claim(ctx).Finished(balancer.DoneInfo{BytesSent: true, BytesReceived: true})
					return nil
				})
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run(fmt.Sprintf("stream/%dB/%s", len(body.Body), name), func(b *testing.B) {
		b.ReportAllocs()
		desc := &grpc.StreamDesc{ServerStreams: true}
		for b.Loop() {
			s, err := set.stream(context.Background(), desc, cc, "/p.S/M",
				func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
					return &instant{ctx: ctx, call: claim(ctx)}, nil
				})
			if err != nil {
				b.Fatal(err)
			}
			if err := s.SendMsg(&testpb.StreamingOutputCallRequest{Payload: body}); err != nil {
				b.Fatal(err)
			}
			for err = s.RecvMsg(nil); err == nil; err = s.RecvMsg(nil) {
			}
		}
	})
}

// endless is a stream that always has a message.
type endless struct{ instant }

func (s *endless) RecvMsg(any) error { return nil }

// BenchmarkReceive is the cost that warmpath adds to each message after the first.
func BenchmarkReceive(b *testing.B) {
	set, cc, _, claim := bound(b, `{"policy":{"power_of_two_choices":{}}}`)
	s, err := set.stream(b.Context(), &grpc.StreamDesc{ServerStreams: true}, cc, "/p.S/M",
		func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
			return &endless{instant{ctx: ctx, call: claim(ctx)}}, nil
		})
	require.NoError(b, err)
	require.NoError(b, s.SendMsg(&testpb.StreamingOutputCallRequest{}))
	b.ReportAllocs()
	for b.Loop() {
		if err := s.RecvMsg(nil); err != nil {
			b.Fatal(err)
		}
	}
}
