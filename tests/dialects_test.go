package tests

import (
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/client"
	enginepb "github.com/warmpath/warmpath/internal/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/internal/enginesim/grpcserver"
)

// anyServer serves every method: it answers an encoded message with the one that answer returns.
func anyServer(t testing.TB, answer func(method string, request []byte, md metadata.MD) []byte) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer(grpc.ForceServerCodecV2(rawBytes{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(stream)
		md, _ := metadata.FromIncomingContext(stream.Context())
		var b []byte
		if err := stream.RecvMsg(&b); err != nil {
			return err
		}
		return stream.SendMsg(answer(method, b, md))
	}))
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

// text is an encoded field of bytes.
func text(num protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, num, protowire.BytesType), s)
}

// Issue 12.43: VllmEngine's chunks carry deltas, and what ends a stream repeats the last one; without a stream it has the total.
func TestVllmEngineOutputTokens(t *testing.T) {
	s := startEngine(t, grpcserver.Config{Virtual: true})
	cc := dial(t, "warmpath:///"+s.Addr().String(), client.WithConfig(`{}`))
	for _, streams := range []bool{true, false} {
		q := generation(fmt.Sprint(streams))
		q.Stream = streams
		*q.SamplingParams.MaxTokens = 7
		var d client.Decision
		stream, err := enginepb.NewVllmEngineClient(cc).Generate(client.WithDecision(deadline(t), &d), q)
		require.NoError(t, err)
		for err == nil {
			_, err = stream.Recv()
		}
		require.NoError(t, ignoreEOF(err))
		require.Equal(t, 7, d.Usage.OutputTokens, "stream: %v", streams)
	}
}

// Issue 12.46: sglang.runtime.v1 has a session of its own, which comes before routing_key; what an older branch has in its
// place is a message and no session.
func TestSGLangRuntimeSession(t *testing.T) {
	addrs := make([]string, 4)
	for i := range addrs {
		addrs[i] = anyServer(t, func(string, []byte, metadata.MD) []byte { return nil })
	}
	cc := dial(t, "warmpath:///"+addrs[0]+","+addrs[1]+","+addrs[2]+","+addrs[3],
		client.WithConfig(`{"policy":{"consistent_hash":{}}}`))
	for _, a := range addrs {
		eventually(t, "all are connected", func() bool {
			var reply []byte
			return cc.Invoke(client.WithPin(deadline(t), a), "/a.B/C", []byte{}, &reply, grpc.ForceCodecV2(rawBytes{})) == nil
		})
	}
	where := func(session, method string, message []byte) string {
		var d client.Decision
		ctx := client.WithDecision(deadline(t), &d)
		if session != "" {
			ctx = client.WithSession(ctx, session)
		}
		var reply []byte
		require.NoError(t, cc.Invoke(ctx, "/sglang.runtime.v1.SglangService/"+method, message, &reply,
			grpc.ForceCodecV2(rawBytes{}), grpc.WaitForReady(true)))
		return d.Replica
	}
	for _, m := range []struct {
		method           string
		routing, session protowire.Number
	}{
		{method: "TextGenerate", routing: 10, session: 13},
		{method: "Generate", routing: 9, session: 12},
	} {
		for i := range 12 {
			session := fmt.Sprint("conversation ", i)
			message := append(text(m.session, session), text(m.routing, "one value for all")...)
			require.Equal(t, where(session, "Other", nil), where("", m.method, message), session)

			parameters := string(text(1, "prefill-host"))
			message = append(text(m.session, parameters), text(m.routing, session)...)
			require.Equal(t, where(session, "Other", nil), where("", m.method, message), session)
		}
	}
}
