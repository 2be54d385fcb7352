package tests

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
)

// tracked is a listener that knows its connections.
type tracked struct {
	net.Listener
	mu    sync.Mutex
	conns map[net.Conn]bool
}

func track(t *testing.T) *tracked {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return &tracked{Listener: l, conns: map[net.Conn]bool{}}
}

func (l *tracked) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = true
	return &trackedConn{c, l}, nil
}

type trackedConn struct {
	net.Conn
	l *tracked
}

func (c *trackedConn) Close() error {
	c.l.mu.Lock()
	delete(c.l.conns, c.Conn)
	c.l.mu.Unlock()
	return c.Conn.Close()
}

func (l *tracked) open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns)
}

// cut breaks one connection.
func (l *tracked) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		_ = c.Close()
		return
	}
}

// holding is a replica whose calls with a body stay until the test lets them go.
type holding struct {
	*replica
	l      *tracked
	inside atomic.Int64
	most   atomic.Int64
	leave  chan struct{}
}

func startHolding(t *testing.T, opts ...grpc.ServerOption) *holding {
	t.Helper()
	h := &holding{l: track(t), leave: make(chan struct{})}
	h.replica = &replica{unary: func(ctx context.Context, q *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		if len(q.GetPayload().GetBody()) == 0 {
			return &testpb.SimpleResponse{Username: h.addr}, nil
		}
		n := h.inside.Add(1)
		defer h.inside.Add(-1)
		for m := h.most.Load(); n > m && !h.most.CompareAndSwap(m, n); m = h.most.Load() {
		}
		select {
		case <-h.leave:
			return &testpb.SimpleResponse{Username: h.addr}, nil
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}}
	h.serve(h.l, opts...)
	t.Cleanup(func() { h.server.Stop() })
	return h
}

// A server that takes few streams on a connection serves as many calls at once as its
// connections take together, and the others wait in the queue, not in a connection.
func TestSeveralConnections(t *testing.T) {
	for _, c := range []struct{ streams, connections int }{{1, 1}, {1, 4}, {2, 3}, {3, 2}, {4, 4}} {
		t.Run(fmt.Sprintf("%d streams, %d connections", c.streams, c.connections), func(t *testing.T) {
			h := startHolding(t, grpc.MaxConcurrentStreams(uint32(c.streams)))
			m := newMeter(t)
			cc := dial(t, target(h.replica), m.option, client.WithConfig(config(`{"round_robin":{}}`,
				fmt.Sprintf(`"connections_per_replica":%d,"max_streams_per_connection":%d`, c.connections, c.streams))))
			connected(t, cc, []*replica{h.replica})
			eventually(t, "all connections", func() bool { return h.l.open() == c.connections })
			room := int64(c.streams * c.connections)
			const more = 5
			var calls sync.WaitGroup
			for range room + more {
				calls.Go(func() {
					if _, err := testpb.NewTestServiceClient(cc).UnaryCall(deadline(t), simple("a")); err != nil {
						t.Error(err)
					}
				})
			}
			eventually(t, "all that fit are served at once", func() bool { return h.inside.Load() == room })
			eventually(t, "the others wait", func() bool { return m.sum(t, "warmpath.queue.length") == more })
			close(h.leave)
			calls.Wait()
			require.Equal(t, room, h.most.Load())
			require.Zero(t, m.ongoing(t))
		})
	}
}

// Streams, bare calls and large bursts are spread likewise.
func TestSeveralConnectionsWithoutInterceptors(t *testing.T) {
	h := startHolding(t, grpc.MaxConcurrentStreams(2))
	dir := newDirectory("several", state("", h.replica))
	cc, err := grpc.NewClient("several:///x", insecureOption(), grpc.WithResolvers(dir), grpc.WithDefaultServiceConfig(
		`{"loadBalancingConfig":[{"warmpath":{"policy":{"power_of_two_choices":{}},"connections_per_replica":3,"max_streams_per_connection":2}}]}`))
	require.NoError(t, err)
	defer func() { require.NoError(t, cc.Close()) }()
	stub := testpb.NewTestServiceClient(cc)
	_, err = stub.UnaryCall(deadline(t), simple(""), grpc.WaitForReady(true))
	require.NoError(t, err)
	eventually(t, "all connections", func() bool { return h.l.open() == 3 })
	var calls sync.WaitGroup
	for range 6 {
		calls.Go(func() {
			_, err := stub.UnaryCall(deadline(t), simple("a"))
			for status.Code(err) == codes.ResourceExhausted { // not all connections are known to be ready yet
				_, err = stub.UnaryCall(deadline(t), simple("a"))
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "all are served at once", func() bool { return h.inside.Load() == 6 })
	_, err = stub.UnaryCall(deadline(t), simple("a"))
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	close(h.leave)
	calls.Wait()
}

// A replica is connected while any of its connections is, and those that break are opened
// again.
func TestSeveralConnectionsBreakOneByOne(t *testing.T) {
	h := startHolding(t)
	m := newMeter(t)
	cc := dial(t, target(h.replica), m.option, client.WithConfig(config(`{"round_robin":{}}`, `"connections_per_replica":3`)))
	connected(t, cc, []*replica{h.replica})
	stub := testpb.NewTestServiceClient(cc)
	for range 10 {
		eventually(t, "all connections", func() bool { return h.l.open() == 3 })
		h.l.cut()
		_, err := stub.UnaryCall(deadline(t), simple(""))
		require.NoError(t, err, "there are two others")
	}
	require.Zero(t, m.ongoing(t))
}

// The number follows the config while calls go on.
func TestSeveralConnectionsFollowTheConfig(t *testing.T) {
	h := startHolding(t)
	dir := newDirectory("resized", state("", h.replica))
	sc := func(n int) string {
		return fmt.Sprintf(`{"loadBalancingConfig":[{"warmpath":{"policy":{"round_robin":{}},"connections_per_replica":%d}}]}`, n)
	}
	cc := dial(t, "resized:///x", grpc.WithResolvers(dir), grpc.WithDefaultServiceConfig(sc(1)))
	stub := testpb.NewTestServiceClient(cc)
	connected(t, cc, []*replica{h.replica})
	calls := startLoad(t, 4, func(int, int) {
		if _, err := stub.UnaryCall(deadlineOf(20*time.Second), simple("")); err != nil {
			t.Error(err)
		}
	})
	for _, n := range []int{4, 2, 5, 1, 3} {
		dir.set(state(sc(n), h.replica))
		eventually(t, "connections", func() bool { return h.l.open() == n })
		calls.advance(1)
	}
}
