package faults

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// gate is a replica whose calls wait inside until it opens.
type gate struct {
	testpb.UnimplementedTestServiceServer
	inside, most, served atomic.Int64
	enter                chan struct{} // one value for each call that has arrived
	open                 chan struct{}
}

func (g *gate) EmptyCall(context.Context, *testpb.Empty) (*testpb.Empty, error) {
	return new(testpb.Empty), nil
}

func (g *gate) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return new(testpb.SimpleResponse), g.stay(ctx)
}

func (g *gate) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	if err := g.stay(s.Context()); err != nil {
		return err
	}
	return s.Send(new(testpb.StreamingOutputCallResponse))
}

func (g *gate) stay(ctx context.Context) error {
	n := g.inside.Add(1)
	defer g.inside.Add(-1)
	for m := g.most.Load(); n > m && !g.most.CompareAndSwap(m, n); m = g.most.Load() {
	}
	g.enter <- struct{}{}
	select {
	case <-g.open:
		g.served.Add(1)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// streamLimit is MAX_CONCURRENT_STREAMS of the gates' servers. callers is the number of concurrent calls.
const (
	streamLimit = 4
	callers     = 64
)

// gates starts four gates that share their channels.
func gates(t *testing.T) (all []*gate, addresses []string) {
	enter, open := make(chan struct{}, callers), make(chan struct{})
	for range 4 {
		lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		g := &gate{enter: enter, open: open}
		s := grpc.NewServer(grpc.MaxConcurrentStreams(streamLimit))
		testpb.RegisterTestServiceServer(s, g)
		go s.Serve(lis) //nolint:errcheck // It ends with Stop.
		t.Cleanup(s.Stop)
		all, addresses = append(all, g), append(addresses, lis.Addr().String())
	}
	return all, addresses
}

// Replicas that take four streams on a connection get 64 concurrent calls. If max_ongoing_requests equals that limit,
// no call waits in a connection while another replica has room. If it does not, all calls are still served.
func TestStreamLimit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		clients int
		bounded bool
		inside  int // calls that are served at once
	}{
		{clients: 1, bounded: true, inside: 4 * streamLimit},
		{clients: 16, bounded: true, inside: callers},
		{clients: 1},
		{clients: 16},
	} {
		for _, policy := range policies {
			t.Run(fmt.Sprintf("%d/%t/%s", tt.clients, tt.bounded, policy), func(t *testing.T) {
				t.Parallel()
				all, addresses := gates(t)
				config := make(map[string]any)
				if tt.bounded {
					config["max_ongoing_requests"] = streamLimit
				}
				if policy == "consistent_hash" { // any replica may serve any call
					config["policy"] = map[string]any{policy: map[string]any{"num_fallback_replicas": len(all) - 1}}
				}
				c := newCrowd(t, tt.clients, policy, config, addresses...)
				c.meet(t, addresses...)
				ctx, cancel := context.WithTimeout(t.Context(), enough)
				defer cancel()
				wait := c.begin(ctx, callers)
				for i := range tt.inside {
					select {
					case <-all[0].enter:
					case <-ctx.Done():
						t.Fatalf("%d calls are served, the others wait", i)
					}
				}
				close(all[0].open)
				for _, v := range wait() {
					require.NoError(t, v.err)
					require.Equal(t, 1, v.attempts)
				}
				served := 0
				for _, g := range all {
					served += int(g.served.Load())
					require.LessOrEqual(t, int(g.most.Load()), tt.clients*streamLimit)
				}
				require.Equal(t, callers, served)
			})
		}
	}
}
