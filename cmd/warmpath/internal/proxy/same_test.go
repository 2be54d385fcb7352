package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// seen records what one side of a call receives, in lines.
type seen struct{ strings.Builder }

func (s *seen) add(format string, args ...any) { fmt.Fprintf(s, format+"\n", args...) }

// metadata adds the metadata of a test.
func (s *seen) metadata(what string, md metadata.MD) {
	for _, key := range []string{"plain", "raw-bin", "many"} {
		if v := md.Get(key); len(v) > 0 {
			s.add("%s %s %q", what, key, v)
		}
	}
}

func (s *seen) status(err error) {
	st := status.Convert(err)
	s.add("status %s %q %v", st.Code(), st.Message(), st.Details())
}

// stream adds all results of a stream.
func (s *seen) stream(c grpc.ClientStream) {
	for {
		var m testpb.StreamingOutputCallResponse
		if err := c.RecvMsg(&m); err != nil {
			if err == io.EOF {
				err = nil
			}
			md, _ := c.Header()
			s.metadata("header", md)
			s.metadata("trailer", c.Trailer())
			s.status(err)
			return
		}
		s.add("message %d %.20q", len(m.GetPayload().GetBody()), m.GetPayload().GetBody())
	}
}

// keys are metadata of the client, and of the replica's header and trailer.
var keys = metadata.Pairs("plain", "a", "raw-bin", "\x00\xff\x01", "many", "1", "many", "2")

// refused is a status with details and a message that has to be escaped.
func refused() error {
	st, err := status.New(codes.FailedPrecondition, "no such näme%").WithDetails(&errdetails.ErrorInfo{Reason: "why"})
	if err != nil {
		panic(err)
	}
	return st.Err()
}

// A scenario is one call: the replica's part and the client's part. Both record what they receive.
type scenario struct {
	replica func(s *seen) *replica
	client  func(ctx context.Context, stub testpb.TestServiceClient, s *seen)
	want    string // part of the record
}

// A client, and a replica, see the same through the proxy as on a direct connection.
func TestTheSameAsDirect(t *testing.T) {
	for name, tt := range scenarios {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var of [2]string
			for i := range of {
				var client, server seen
				r := start(t, tt.replica(&server))
				at := r.at
				if i == 1 {
					_, at = through(t, "warmpath:///"+r.at)
				}
				ctx := metadata.NewOutgoingContext(deadline(t), keys)
				tt.client(ctx, testpb.NewTestServiceClient(dial(t, at)), &client)
				r.server.GracefulStop() // the handlers have returned
				of[i] = client.String() + "--\n" + server.String()
			}
			require.Equal(t, of[0], of[1])
			require.Contains(t, of[0], tt.want)
		})
	}
}

// output is a replica with one stream of answers.
func output(do func(s *seen, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error) func(*seen) *replica {
	return func(s *seen) *replica {
		return &replica{output: func(
			q *testpb.StreamingOutputCallRequest, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse],
		) error {
			md, _ := metadata.FromIncomingContext(out.Context())
			s.metadata("request", md)
			_, bounded := out.Context().Deadline()
			s.add("request %d %.20q deadline %v", len(q.GetPayload().GetBody()), q.GetPayload().GetBody(), bounded)
			return do(s, out)
		}}
	}
}

// outputs calls it.
func outputs(text string, options ...grpc.CallOption) func(context.Context, testpb.TestServiceClient, *seen) {
	return func(ctx context.Context, stub testpb.TestServiceClient, s *seen) {
		stream, err := stub.StreamingOutputCall(ctx, ask(text), options...)
		if err != nil {
			s.status(err)
			return
		}
		s.stream(stream)
	}
}

// duplex is a replica with a stream in both directions.
func duplex(do func(*seen, grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error) func(*seen) *replica {
	return func(s *seen) *replica {
		return &replica{duplex: func(
			x grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse],
		) error {
			return do(s, x)
		}}
	}
}

// duplexes calls it.
func duplexes(do func(*seen, grpc.BidiStreamingClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse])) func(context.Context, testpb.TestServiceClient, *seen) {
	return func(ctx context.Context, stub testpb.TestServiceClient, s *seen) {
		x, err := stub.FullDuplexCall(ctx)
		if err != nil {
			s.status(err)
			return
		}
		do(s, x)
	}
}

var scenarios = map[string]scenario{
	"unary": {
		replica: func(s *seen) *replica {
			return &replica{unary: func(ctx context.Context, q *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
				md, _ := metadata.FromIncomingContext(ctx)
				s.metadata("request", md)
				s.add("accepts %q", md.Get("grpc-accept-encoding"))
				return &testpb.SimpleResponse{Payload: q.GetPayload()}, errors.Join(grpc.SetHeader(ctx, keys), grpc.SetTrailer(ctx, keys))
			}}
		},
		client: func(ctx context.Context, stub testpb.TestServiceClient, s *seen) {
			var header, trailer metadata.MD
			a, err := stub.UnaryCall(ctx, &testpb.SimpleRequest{Payload: payload("hello")}, grpc.Header(&header), grpc.Trailer(&trailer))
			s.add("%q", a.GetPayload().GetBody())
			s.metadata("header", header)
			s.metadata("trailer", trailer)
			s.status(err)
		},
		want: `request raw-bin ["\x00\xff\x01"]`,
	},
	"empty messages": {
		replica: output(func(_ *seen, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			return errors.Join(out.Send(&testpb.StreamingOutputCallResponse{}), out.Send(answer("")))
		}),
		client: outputs(""), want: "message 0",
	},
	"answers": {
		replica: output(func(_ *seen, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			out.SetTrailer(keys)
			return errors.Join(out.SetHeader(keys), out.Send(answer("a")), out.Send(answer("b")))
		}),
		client: outputs("hello"), want: "message 1 \"b\"\nheader plain",
	},
	"header and no message": {
		replica: output(func(_ *seen, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			out.SetTrailer(keys)
			return out.SendHeader(keys)
		}),
		client: outputs("hello"), want: "header many",
	},
	"trailers only": {
		replica: output(func(_ *seen, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			out.SetTrailer(keys)
			return refused()
		}),
		client: outputs("hello"), want: `status FailedPrecondition "no such näme%" [reason:"why"`,
	},
	"status after a header": {
		replica: output(func(_ *seen, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			return errors.Join(out.SendHeader(keys), refused())
		}),
		client: outputs("hello"),
	},
	"status after a message": {
		replica: output(func(_ *seen, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			if err := out.Send(answer("a")); err != nil {
				return err
			}
			out.SetTrailer(keys)
			return refused()
		}),
		client: outputs("hello"), want: "message 1 \"a\"\ntrailer plain",
	},
	"large": {
		replica: output(func(_ *seen, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			return errors.Join(out.Send(answer(strings.Repeat("b", 10<<20))), out.Send(answer("c")))
		}),
		client: outputs(strings.Repeat("a", 10<<20)), want: "request 10485760",
	},
	"gzip": {
		replica: output(compression), client: outputs("hello", grpc.UseCompressor("gzip")), want: `compression "gzip"`,
	},
	"deflate": {
		replica: output(compression), client: outputs("hello", grpc.UseCompressor("deflate")), want: `compression "deflate"`,
	},
	"content type": {
		replica: output(func(s *seen, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			md, _ := metadata.FromIncomingContext(out.Context())
			s.add("%q", md.Get("content-type"))
			return out.Send(answer("a"))
		}),
		client: outputs("hello", grpc.CallContentSubtype(other)), want: `["application/grpc+other"]`,
	},
	"unknown method": {
		replica: func(*seen) *replica { return &replica{} },
		client: func(ctx context.Context, stub testpb.TestServiceClient, s *seen) {
			_, err := stub.UnimplementedCall(ctx, &testpb.Empty{})
			s.status(err)
		},
		want: "status Unimplemented",
	},
	"requests": {
		replica: func(s *seen) *replica {
			return &replica{input: counted}
		},
		client: func(ctx context.Context, stub testpb.TestServiceClient, s *seen) {
			for _, n := range []int{0, 1, 2, 100} {
				in, err := stub.StreamingInputCall(ctx)
				for i := 0; i < n && err == nil; i++ {
					err = in.Send(input("1234567890"))
				}
				if err != nil {
					s.status(err)
					return
				}
				a, err := in.CloseAndRecv()
				s.add("%d", a.GetAggregatedPayloadSize())
				s.status(err)
			}
		},
		want: "1000\n",
	},
	"interleaved": {
		replica: duplex(func(_ *seen, x grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
			for {
				q, err := x.Recv()
				if err != nil {
					return errors.Join(x.Send(answer("end")), refused())
				}
				if err := x.Send(answer(string(q.GetPayload().GetBody()) + "!")); err != nil {
					return err
				}
			}
		}),
		client: duplexes(func(s *seen, x grpc.BidiStreamingClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) {
			for i := range 100 {
				err := x.Send(ask(fmt.Sprint(i)))
				a, err2 := x.Recv()
				s.add("%s %v %v", a.GetPayload().GetBody(), err, err2)
			}
			s.add("%v", x.CloseSend())
			s.stream(x)
		}),
		want: "99! <nil> <nil>\n<nil>\nmessage 3 \"end\"\nstatus",
	},
	"header before the first answer": {
		replica: duplex(func(_ *seen, x grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
			if err := x.SendHeader(keys); err != nil {
				return err
			}
			for range 2 { // the second request comes after the header
				if _, err := x.Recv(); err != nil {
					return err
				}
			}
			return nil
		}),
		client: duplexes(func(s *seen, x grpc.BidiStreamingClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) {
			err := x.Send(ask("a"))
			md, err2 := x.Header()
			s.metadata("early", md)
			s.add("%v %v %v %v", err, err2, x.Send(ask("b")), x.CloseSend())
			s.stream(x)
		}),
		want: "early plain",
	},
	"the replica begins": {
		replica: duplex(func(_ *seen, x grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
			err := x.Send(answer("welcome"))
			q, err2 := x.Recv()
			return errors.Join(err, err2, x.Send(q2a(q)))
		}),
		client: duplexes(func(s *seen, x grpc.BidiStreamingClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) {
			a, err := x.Recv()
			s.add("%q %v %v %v", a.GetPayload().GetBody(), err, x.Send(ask("thanks")), x.CloseSend())
			s.stream(x)
		}),
		want: `"welcome"`,
	},
	"early status": {
		replica: duplex(func(_ *seen, x grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
			_, err := x.Recv()
			x.SetTrailer(keys)
			return errors.Join(err, refused())
		}),
		client: duplexes(func(s *seen, x grpc.BidiStreamingClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) {
			s.add("%v", x.Send(ask("a")))
			s.stream(x) // without a half-close
		}),
		want: "status FailedPrecondition",
	},
	"deadline": {
		replica: output(func(_ *seen, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			<-out.Context().Done()
			return out.Context().Err() // the replica's timer may fire first
		}),
		client: func(ctx context.Context, stub testpb.TestServiceClient, s *seen) {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // long enough to reach the replica
			defer cancel()
			_, err := read(stub.StreamingOutputCall(ctx, ask("hello")))
			s.add("%s", status.Code(err))
		},
		want: "DeadlineExceeded",
	},
	"cancel": {
		replica: output(func(s *seen, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			err := out.Send(answer("a"))
			<-out.Context().Done()
			s.add("%v", context.Cause(out.Context()))
			return err
		}),
		client: func(ctx context.Context, stub testpb.TestServiceClient, s *seen) {
			ctx, cancel := context.WithCancel(ctx)
			out, err := stub.StreamingOutputCall(ctx, ask("hello"))
			if err == nil {
				_, err = out.Recv()
			}
			cancel()
			s.add("%v", err)
		},
		want: "context canceled",
	},
}

func q2a(q *testpb.StreamingOutputCallRequest) *testpb.StreamingOutputCallResponse {
	return &testpb.StreamingOutputCallResponse{Payload: q.GetPayload()}
}

// compression records how the request was compressed.
func compression(s *seen, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	x, _ := grpc.ServerTransportStreamFromContext(out.Context()).(interface{ RecvCompress() string })
	s.add("compression %q", x.RecvCompress())
	return errors.Join(out.Send(answer("a")), out.Send(answer(strings.Repeat("b", 1<<20))))
}

// read reads a stream to its end.
func read(out grpc.ServerStreamingClient[testpb.StreamingOutputCallResponse], err error) (texts []string, _ error) {
	for err == nil {
		var a *testpb.StreamingOutputCallResponse
		if a, err = out.Recv(); err == nil {
			texts = append(texts, string(a.GetPayload().GetBody()))
		}
	}
	if err == io.EOF {
		err = nil
	}
	return texts, err
}

// other is a content subtype that does not name protobuf.
const other = "other"

type otherCodec struct{ encoding.CodecV2 }

func (otherCodec) Name() string { return other }

func init() { encoding.RegisterCodecV2(otherCodec{encoding.GetCodecV2("proto")}) }
