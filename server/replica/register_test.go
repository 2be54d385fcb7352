package replica

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/freeport"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// lookaside answers heartbeats as a look-aside server does, and shows them to the test.
type lookaside struct {
	warmpathv1.UnimplementedRoutingServiceServer
	address    string
	heartbeats chan *warmpathv1.RegisterRequest
	answer     func() (*warmpathv1.RegisterResponse, error)
	server     *grpc.Server
}

func (l *lookaside) Register(_ context.Context, q *warmpathv1.RegisterRequest) (*warmpathv1.RegisterResponse, error) {
	l.heartbeats <- q
	return l.answer()
}

func startLookaside(t *testing.T) *lookaside {
	t.Helper()
	l := &lookaside{
		address:    fmt.Sprint("127.0.0.1:", freeport.Find(1)[0]),
		heartbeats: make(chan *warmpathv1.RegisterRequest, 100),
	}
	l.answer = func() (*warmpathv1.RegisterResponse, error) {
		return &warmpathv1.RegisterResponse{LeaseMs: 9000, HeartbeatMs: 2000}, nil
	}
	l.start(t)
	return l
}

func (l *lookaside) start(t *testing.T) {
	t.Helper()
	lis, err := net.Listen("tcp", l.address)
	require.NoError(t, err)
	s := grpc.NewServer()
	l.server = s
	warmpathv1.RegisterRoutingServiceServer(s, l)
	go func() { _ = s.Serve(lis) }() // ends with Stop
	t.Cleanup(s.Stop)
}

func (l *lookaside) next(t *testing.T) *warmpathv1.RegisterRequest {
	t.Helper()
	select {
	case q := <-l.heartbeats:
		return q
	case <-time.After(20 * time.Second):
		require.FailNow(t, "no heartbeat")
		return nil
	}
}

// registering returns a config that names look-aside servers.
func registering(servers ...*lookaside) Config {
	c := Config{Logger: slog.New(slog.DiscardHandler), DialOptions: []grpc.DialOption{plain}, Replica: policy.Attributes{ID: "a", Address: "10.0.0.1:50051"}}
	for _, s := range servers {
		c.Servers = append(c.Servers, s.address)
	}
	return c
}

func TestHeartbeatsCarryEverything(t *testing.T) {
	one, two := startLookaside(t), startLookaside(t)
	c := registering(one, two)
	c.Replica = policy.Attributes{
		ID: "a", Address: "10.0.0.1:50051", ServerName: "a.example", Zone: "z", Node: "n", Weight: 2, MaxOngoing: 8,
		Models: []string{"m"}, Adapters: []string{"x"}, Ranks: 4, KVEvents: "tcp://e:1", KVEventsReplay: "tcp://e:2", Instance: "life",
		Role: policy.RolePrefill, Pair: "p", KVBootstrap: "10.0.0.1:9000", KVEngineID: "e",
	}
	c.Deployment, c.Lease, c.KVTokens = "d", 5*time.Second, 1000
	c.Stats = func() map[string]float64 { return map[string]float64{"temperature": 61.5} }
	c.Load = func() Load { return Load{Ongoing: 3, Waiting: 1, UncachedTokens: 77} }
	r, clock := stopped(t, c)
	_, end, ended := serve(t, r, newModel())

	want := &warmpathv1.RegisterRequest{
		Deployment: "d", LeaseMs: 5000, Ongoing: new(uint32(3)), QueuedTokens: new(uint64(77)),
		Replica: &warmpathv1.Replica{
			Id: "a", Address: "10.0.0.1:50051", ServerName: "a.example", Zone: "z", Node: "n", Weight: 2, MaxOngoingRequests: 8,
			Models: []string{"m"}, Adapters: []string{"x"}, Ranks: 4, KvEvents: "tcp://e:1", KvEventsReplay: "tcp://e:2",
			KvTokens: 1000, Stats: map[string]float64{"temperature": 61.5}, Instance: "life",
			Role: "prefill", Pair: "p", KvBootstrap: "10.0.0.1:9000", KvEngineId: "e",
		},
	}
	same := func(s *lookaside) {
		t.Helper()
		got := s.next(t)
		require.True(t, proto.Equal(want, got), "want %v\ngot  %v", want, got)
	}
	same(one)
	same(two)
	clock.await(t, 2*time.Second, 2) // else one of them could come twice
	clock.fire(t, 2*time.Second)
	clock.fire(t, 2*time.Second)
	same(one)
	same(two)

	r.SetAdapters([]string{"y", "", "x"})
	want.Replica.Adapters = []string{"y", "x"}
	same(one)
	same(two)
	r.SetAdapters([]string{"y", "x"}) // no change

	end()
	want.Replica.Draining = true
	same(one)
	same(two)
	clock.fire(t, time.Second)
	want.Leaving = true
	same(one)
	same(two)
	require.NoError(t, <-ended)
	require.Empty(t, one.heartbeats)
	require.Empty(t, two.heartbeats)
}

// A server that restarts without its registrations gets the replica's again.
func TestServerRestarts(t *testing.T) {
	s := startLookaside(t)
	c := registering(s)
	var log strings.Builder
	c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	r, clock := stopped(t, c)
	_, end, ended := serve(t, r, newModel())
	require.Equal(t, "a", s.next(t).GetReplica().GetId())
	s.server.GracefulStop() // the answer goes out
	clock.fire(t, 2*time.Second)
	for range 7 {
		clock.fire(t, retryAfter)
	}
	require.Empty(t, s.heartbeats)

	s.start(t)
	eventually(t, "the next heartbeat arrives", func() bool { // gRPC has a backoff of its own
		clock.tryFire(retryAfter)
		return len(s.heartbeats) > 0
	})
	q := s.next(t)
	require.Equal(t, "a", q.GetReplica().GetId())
	require.Equal(t, "10.0.0.1:50051", q.GetReplica().GetAddress())
	end()
	require.True(t, s.next(t).GetReplica().GetDraining())
	clock.fire(t, time.Second)
	require.True(t, s.next(t).GetLeaving())
	require.NoError(t, <-ended)
	require.Equal(t, 2, strings.Count(log.String(), "level=INFO"), log.String())
	require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
}

func TestWhenTheNextHeartbeatComes(t *testing.T) {
	for name, c := range map[string]struct {
		lease, heartbeat uint32
		err              error
		want             time.Duration
	}{
		"as the server answers": {9000, 1500, nil, 1500 * time.Millisecond},
		"by the lease":          {9000, 0, nil, 3 * time.Second},
		"not too often":         {1, 1, nil, minHeartbeat},
		"an empty answer":       {0, 0, nil, minHeartbeat},
		"not too seldom":        {1 << 31, 1 << 31, nil, maxHeartbeat},
		"refused":               {0, 0, status.Error(codes.NotFound, "no deployment"), retryAfter},
		"not implemented":       {0, 0, status.Error(codes.Unimplemented, "old"), retryAfter},
	} {
		t.Run(name, func(t *testing.T) {
			s := startLookaside(t)
			s.answer = func() (*warmpathv1.RegisterResponse, error) {
				return &warmpathv1.RegisterResponse{LeaseMs: c.lease, HeartbeatMs: c.heartbeat}, c.err
			}
			r, _ := stopped(t, registering(s))
			l, err := r.dial(s.address)
			require.NoError(t, err)
			defer l.conn.Close()
			require.Equal(t, c.want, l.beat(within(t), new(warmpathv1.RegisterRequest)))
		})
	}
}

func TestJitterComesEarlyNeverLate(t *testing.T) {
	r, err := New(Config{})
	require.NoError(t, err)
	for range 1000 {
		d := r.jitter(8 * time.Second)
		require.GreaterOrEqual(t, d, 7*time.Second)
		require.LessOrEqual(t, d, 8*time.Second)
	}
}
