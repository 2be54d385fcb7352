package tests

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/client"
)

// A prepared message hides the prompt: the call is routed by its session, else as
// one without a key, on every kind of stream.
func TestPreparedMessages(t *testing.T) {
	rs := replicas(t, 3)
	cc := dial(t, target(rs...), client.WithConfig(config(`{"prefix_cache_affinity":{}}`)))
	connected(t, cc, rs)
	for name, tt := range map[string]struct {
		desc   *grpc.StreamDesc
		method string
	}{
		"server stream": {serverStream, streamingMethod},
		"bidirectional": {bidiStream, duplexMethod},
	} {
		t.Run(name, func(t *testing.T) {
			send := func(ctx context.Context) client.Decision {
				var d client.Decision
				s, err := cc.NewStream(client.WithDecision(ctx, &d), tt.desc, tt.method)
				require.NoError(t, err)
				var p grpc.PreparedMsg
				require.NoError(t, p.Encode(s, prompt("a")))
				require.NoError(t, s.SendMsg(&p))
				require.NoError(t, s.CloseSend())
				var reply testpb.StreamingOutputCallResponse
				require.NoError(t, s.RecvMsg(&reply))
				require.Equal(t, d.Replica, string(reply.Payload.Body))
				require.Equal(t, io.EOF, s.RecvMsg(&reply))
				return d
			}
			require.Equal(t, routing.ReasonNoKey, send(deadline(t)).Reason)
			first := send(client.WithSession(deadline(t), "user"))
			require.Equal(t, routing.ReasonAgreedOrder, first.Reason)
			require.Equal(t, first.Replica, send(client.WithSession(deadline(t), "user")).Replica)
		})
	}
}

// One that was encoded for another stream opens this one as any message does.
func TestPreparedOnce(t *testing.T) {
	rs := replicas(t, 2)
	cc := dial(t, target(rs...), roundRobin())
	s, err := cc.NewStream(deadline(t), serverStream, streamingMethod)
	require.NoError(t, err)
	var p grpc.PreparedMsg
	require.NoError(t, p.Encode(s, prompt("a")))
	require.NoError(t, s.SendMsg(&p))
	drain(t, s)
	s, err = cc.NewStream(deadline(t), serverStream, streamingMethod)
	require.NoError(t, err)
	require.NoError(t, s.SendMsg(&p))
	drain(t, s)
}

func TestPreparedWhileNothingIsConnected(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	m := newMeter(t)
	cc := dial(t, "warmpath:///"+addr, roundRobin(), m.option)
	s, err := cc.NewStream(deadline(t), serverStream, streamingMethod)
	require.NoError(t, err)
	var p grpc.PreparedMsg
	require.Error(t, p.Encode(s, prompt("a")))
	require.Equal(t, codes.Unavailable, status.Code(s.SendMsg(prompt("a"))), "the stream tells why")
	require.Zero(t, m.ongoing(t))
}
