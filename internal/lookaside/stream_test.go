package lookaside

import (
	"context"
	"log/slog"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// slowly sends the messages of a stream after it has ended.
type slowly struct{ grpc.ClientStream }

func (s slowly) SendMsg(m any) error {
	_, _ = s.Header() // it has ended
	return s.ClientStream.SendMsg(m)
}

// The reason of a server that refuses the watch before its first message is sent reaches Options.Failed.
func TestRefusedBeforeTheFirstMessage(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer() // without the service
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	failed := make(chan error, 1)
	w, err := Start(Options{
		Servers: []string{l.Addr().String()}, Deployment: "chat", Logger: slog.New(slog.DiscardHandler),
		Dial: []grpc.DialOption{
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
				stream, err := open(ctx, d, cc, method, o...)
				return slowly{stream}, err
			}),
		},
		Failed: func(err error) {
			select {
			case failed <- err:
			default:
			}
		},
	})
	require.NoError(t, err)
	require.ErrorContains(t, <-failed, "unknown service")
	w.Close()
	s.Stop()
	require.NoError(t, <-served)
}
