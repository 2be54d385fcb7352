package tests

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
)

// where makes one unary call and returns the address of the replica that answered.
func where(t testing.TB, ctx context.Context, cc *grpc.ClientConn, text string) string {
	t.Helper()
	reply, err := testpb.NewTestServiceClient(cc).UnaryCall(ctx, simple(text))
	require.NoError(t, err)
	return reply.Username
}

// settled waits until a channel without warmpath's interceptors is connected to every replica.
func settled(t testing.TB, cc *grpc.ClientConn, rs []*replica) {
	t.Helper()
	stub := testpb.NewTestServiceClient(cc)
	met := make(map[string]bool)
	ctx := deadline(t)
	i := 0
	eventually(t, "connections to all", func() bool {
		i++
		reply, err := stub.UnaryCall(metadata.AppendToOutgoingContext(ctx, "session_id", fmt.Sprint("settle", i)), simple(""))
		if err == nil {
			met[reply.Username] = true
		}
		return len(met) == len(rs)
	})
}

// logged collects concurrent output: log lines, or the output of a program.
type logged struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }
