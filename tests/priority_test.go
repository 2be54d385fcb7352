package tests

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/client"
)

// Calls that wait for a full replica are served by their priority in metadata.
func TestPrioritiesInMetadata(t *testing.T) {
	var mu sync.Mutex
	var order []string
	entered, leave := make(chan struct{}), make(chan struct{})
	r := start(t, &replica{unary: func(_ context.Context, q *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		switch name := string(q.GetPayload().GetBody()); name {
		case "":
		case "hold":
			close(entered)
			<-leave
		default:
			mu.Lock()
			order = append(order, name)
			mu.Unlock()
		}
		return &testpb.SimpleResponse{}, nil
	}})
	m := newMeter(t)
	cc := dial(t, target(r), m.option, client.WithConfig(config(`{"round_robin":{}}`, `"max_ongoing_requests":1`)))
	stub := testpb.NewTestServiceClient(cc)
	connectedExcept(t, cc, []*replica{r})
	var calls sync.WaitGroup
	call := func(name, priority string) {
		calls.Go(func() {
			ctx := deadline(t)
			if priority != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, "X-Warmpath-Priority", priority)
			}
			if _, err := stub.UnaryCall(ctx, simple(name)); err != nil {
				t.Error(err)
			}
		})
	}
	call("hold", "")
	<-entered
	for i, c := range [][2]string{{"low", "low"}, {"one", ""}, {"high", "high"}, {"two", "normal"}, {"higher", "high"}} {
		call(c[0], c[1])
		eventually(t, "it waits", func() bool { return m.sum(t, "warmpath.queue.length") == int64(i+1) })
	}
	close(leave)
	calls.Wait()
	require.Equal(t, []string{"high", "higher", "one", "two", "low"}, order)
}
