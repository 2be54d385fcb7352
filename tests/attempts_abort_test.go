package tests

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/telemetry"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
)

func startEngine(t testing.TB, c grpcserver.Config) *grpcserver.Server {
	t.Helper()
	l := listenLoopback(t)
	s, err := grpcserver.Start(l, c)
	require.NoError(t, err)
	t.Cleanup(s.Kill)
	return s
}

func generation(id string) *enginepb.GenerateRequest {
	most := uint32(100_000)
	return &enginepb.GenerateRequest{
		RequestId: id, Stream: true, SamplingParams: &enginepb.SamplingParams{MaxTokens: &most},
		Input: &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: []uint32{1, 2, 3, 4}}},
	}
}

// When a call is cancelled and the engine does not notice, the client calls Abort and the engine frees what it held.
func TestAbortFreesTheEngine(t *testing.T) {
	for _, policy := range []string{"round_robin", "kv_aware"} {
		t.Run(policy, func(t *testing.T) {
			s := startEngine(t, grpcserver.Config{Speed: 10, IgnoreCancel: true})
			m := newMeter(t)
			cc := dial(t, "warmpath:///"+s.Addr().String(), client.WithConfig(`{"policy":{"`+policy+`":{}},"max_ongoing_requests":1}`), m.option)
			stub := enginepb.NewVllmEngineClient(cc)
			ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(deadline(t), "x-request-id", "another name"))
			stream, err := stub.Generate(ctx, generation("r1"))
			require.NoError(t, err)
			_, err = stream.Recv()
			require.NoError(t, err)
			require.Equal(t, 1, s.Stats().Load.Running)
			cancel()
			eventually(t, "the engine is free", func() bool {
				st := s.Stats()
				return st.Engine.Aborted == 1 && st.Load.UsedTokens == 0 && st.Ongoing == 0
			})
			eventually(t, "it was counted", func() bool {
				return m.sum(t, "warmpath.aborts", telemetry.KeyReason.String(telemetry.CallDone)) == 1
			})
			eventually(t, "nothing is reserved", func() bool { return m.ongoing(t) == 0 })
		})
	}
}

// A call that ends by itself is not aborted, nor is a call without a request id.
func TestNoAbortWithoutNeed(t *testing.T) {
	s := startEngine(t, grpcserver.Config{Virtual: true})
	m := newMeter(t)
	cc := dial(t, "warmpath:///"+s.Addr().String(), client.WithConfig(`{}`), m.option)
	stub := enginepb.NewVllmEngineClient(cc)
	q := generation("r1")
	*q.SamplingParams.MaxTokens = 3
	for range 10 {
		stream, err := stub.Generate(deadline(t), q)
		require.NoError(t, err)
		for err == nil {
			_, err = stream.Recv()
		}
		require.Equal(t, codes.OK, status.Code(ignoreEOF(err)))
	}
	slow := startEngine(t, grpcserver.Config{Speed: 10})
	cc = dial(t, "warmpath:///"+slow.Addr().String(), client.WithConfig(`{}`), m.option)
	ctx, cancel := context.WithCancel(deadline(t))
	stream, err := enginepb.NewVllmEngineClient(cc).Generate(ctx, generation(""))
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	cancel()
	eventually(t, "the engine noticed", func() bool { return slow.Stats().Ongoing == 0 })
	require.Zero(t, m.sum(t, "warmpath.aborts"))
}

func ignoreEOF(err error) error {
	if err != nil && err.Error() == "EOF" {
		return nil
	}
	return err
}

// rawBytes passes encoded messages through.
type rawBytes struct{ encoding.CodecV2 }

func (rawBytes) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (rawBytes) Unmarshal(b mem.BufferSlice, v any) error {
	*v.(*[]byte) = b.Materialize()
	return nil
}
func (rawBytes) Name() string { return "proto" }

// abortRecorder records the requests that a server gets on methods named Abort.
type abortRecorder struct {
	mu     sync.Mutex
	method string
	id     string
	auth   []string
}

func (h *abortRecorder) serve(t *testing.T) (addr string, entered chan struct{}) {
	l := listenLoopback(t)
	entered = make(chan struct{}, 1)
	s := grpc.NewServer(grpc.ForceServerCodecV2(rawBytes{}), everyMethod(func(_ any, stream grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(stream)
		var b []byte
		if err := stream.RecvMsg(&b); err != nil {
			return err
		}
		if !strings.HasSuffix(method, "/Abort") {
			entered <- struct{}{}
			<-stream.Context().Done()
			return stream.Context().Err()
		}
		_, _, n := protowire.ConsumeTag(b)
		id, _ := protowire.ConsumeString(b[n:])
		h.mu.Lock()
		h.method, h.id, h.auth = method, id, metadata.ValueFromIncomingContext(stream.Context(), "authorization")
		h.mu.Unlock()
		return stream.SendMsg([]byte{8, 1}) // success = 1
	}))
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String(), entered
}

// Every built-in dialect with an Abort calls it as the engine expects it: field 1 is the id.
func TestAbortOfEveryDialect(t *testing.T) {
	message := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "the id")
	table, err := requestkey.NewTable()
	require.NoError(t, err)
	for _, d := range requestkey.Builtin {
		if d.Abort == "" {
			continue
		}
		for _, method := range d.Methods {
			require.Equal(t, "the id", table.Lookup(method).RequestID(message))
			t.Run(method, func(t *testing.T) {
				var h abortRecorder
				addr, entered := h.serve(t)
				cc := dial(t, "warmpath:///"+addr, client.WithConfig(`{}`))
				ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(deadline(t), "authorization", "Bearer x"))
				defer cancel()
				done := make(chan error, 1)
				go func() {
					var reply []byte
					done <- cc.Invoke(ctx, method, message, &reply, grpc.ForceCodecV2(rawBytes{}))
				}()
				<-entered
				cancel()
				require.Equal(t, codes.Canceled, status.Code(<-done))
				eventually(t, "the engine gets the abort", func() bool {
					h.mu.Lock()
					defer h.mu.Unlock()
					return h.method != ""
				})
				require.Equal(t, d.Abort, h.method)
				require.Equal(t, "the id", h.id)
				require.Equal(t, []string{"Bearer x"}, h.auth)
			})
		}
	}
}

// A closed channel leaves no Abort call behind, even if the engine does not answer it.
func TestCloseEndsAborts(t *testing.T) {
	l := listenLoopback(t)
	called, aborting := make(chan struct{}, 1), make(chan struct{}, 1)
	s := grpc.NewServer(everyMethod(func(_ any, stream grpc.ServerStream) error {
		if method, _ := grpc.MethodFromServerStream(stream); strings.HasSuffix(method, "/Abort") {
			aborting <- struct{}{}
		} else {
			called <- struct{}{}
		}
		<-stream.Context().Done()
		return stream.Context().Err()
	}))
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	m := newMeter(t)
	cc, err := client.New("warmpath:///"+l.Addr().String(), insecureOption(), client.WithConfig(`{}`), m.option)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(deadline(t))
	stream, err := enginepb.NewVllmEngineClient(cc).Generate(ctx, generation("r"))
	require.NoError(t, err)
	defer runtime.KeepAlive(stream)
	<-called
	cancel()
	<-aborting
	require.NoError(t, cc.Close())
	eventually(t, "it was counted", func() bool {
		return m.sum(t, "warmpath.aborts", telemetry.KeyReason.String(telemetry.CallFailed)) == 1
	})
}
