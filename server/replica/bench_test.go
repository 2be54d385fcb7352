package replica

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
)

// transport takes trailers as a gRPC stream does.
type transport struct{ trailer metadata.MD }

func (*transport) Method() string                   { return "/model.Service/Generate" }
func (*transport) SetHeader(metadata.MD) error      { return nil }
func (*transport) SendHeader(metadata.MD) error     { return nil }
func (t *transport) SetTrailer(m metadata.MD) error { t.trailer = m; return nil }

// The cost that the interceptor adds to a call, next to gRPC's own for the trailer.
func BenchmarkUnary(b *testing.B) {
	engine := func() Load { return Load{Ongoing: 7, Waiting: 3, UncachedTokens: 1234} }
	for _, c := range []struct {
		name   string
		config Config
		full   bool
	}{
		{"counted", Config{OmitLoad: true}, false},
		{"load", Config{Load: engine, KVTokens: 281600}, false},
		{"refused", bounded(1), true},
	} {
		b.Run(c.name, func(b *testing.B) {
			r, err := New(c.config)
			if err != nil {
				b.Fatal(err)
			}
			if c.full {
				r.enter()
			}
			t := new(transport)
			ctx := grpc.NewContextWithServerTransportStream(context.Background(), t)
			info := &grpc.UnaryServerInfo{FullMethod: t.Method()}
			handler := func(context.Context, any) (any, error) { return nil, nil }
			b.ReportAllocs()
			for b.Loop() {
				_, _ = r.unary(ctx, nil, info, handler)
			}
		})
	}
}

// The same over a connection, next to a server without the interceptors.
func BenchmarkLoopback(b *testing.B) {
	r, err := New(Config{KVTokens: 281600, Load: func() Load { return Load{Ongoing: 7, Waiting: 3, UncachedTokens: 1234} }})
	if err != nil {
		b.Fatal(err)
	}
	for name, options := range map[string][]grpc.ServerOption{"bare": nil, "replica": r.ServerOptions()} {
		b.Run(name, func(b *testing.B) {
			s := grpc.NewServer(options...)
			testpb.RegisterTestServiceServer(s, newModel())
			l := listen(b)
			go func() { _ = s.Serve(l) }() // ends with Stop
			defer s.Stop()
			conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), plain)
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			stub := testpb.NewTestServiceClient(conn)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := stub.EmptyCall(b.Context(), &testpb.Empty{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
