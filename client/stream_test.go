package client

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// The first message ends the prefill, also where the application has read the header before.
func TestFirstMessageAfterHeader(t *testing.T) {
	for _, header := range []bool{false, true} {
		set, cc, router, claim := bound(t, `{"policy":{"kv_aware":{}}}`)
		queued := func() (n int) {
			for _, r := range router.View().Replicas() {
				n += r.QueuedTokens()
			}
			return n
		}
		s, err := set.stream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, cc, "/p.S/M",
			func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
				return &instant{ctx: ctx, call: claim(ctx)}, nil
			})
		require.NoError(t, err)
		body := &testpb.Payload{Body: []byte(strings.Repeat("x", 400))}
		require.NoError(t, s.SendMsg(&testpb.StreamingOutputCallRequest{Payload: body}))
		require.Equal(t, 100, queued())
		if header {
			_, err = s.Header()
			require.NoError(t, err)
			require.Equal(t, 100, queued(), "a header is no message")
		}
		require.NoError(t, s.RecvMsg(nil))
		require.Zero(t, queued())
		require.Equal(t, io.EOF, s.RecvMsg(nil))
	}
}
