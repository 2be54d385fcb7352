package replica

import (
	"math"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
)

// A call under way ends well, calls still come in during the notice, and a health watch, which never ends, delays
// nothing.
func TestDrain(t *testing.T) {
	s := startLookaside(t)
	r, clock := stopped(t, registering(s))
	m := newModel()
	conn, end, ended := serve(t, r, m)
	s.next(t)
	watch, err := healthpb.NewHealthClient(conn).Watch(within(t), &healthpb.HealthCheckRequest{Service: "grpc.testing.TestService"})
	require.NoError(t, err)
	answer, err := watch.Recv()
	require.NoError(t, err)
	require.Equal(t, healthpb.HealthCheckResponse_SERVING, answer.GetStatus())
	results := make(chan error, 2)
	call := func() {
		go func() { _, err := calls["unary"](within(t), conn); results <- err }()
		<-m.entered
	}
	call()

	end()
	require.True(t, s.next(t).GetReplica().GetDraining())
	answer, err = watch.Recv()
	require.NoError(t, err)
	require.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, answer.GetStatus())
	call()
	clock.fire(t, time.Second)
	require.Empty(t, s.heartbeats, "two calls are under way: it does not leave")
	close(m.release)
	require.NoError(t, <-results)
	require.NoError(t, <-results)
	clock.fire(t, linger)
	clock.fire(t, linger)
	require.NoError(t, <-ended)
	require.True(t, s.next(t).GetLeaving())
	_, err = watch.Recv()
	require.Error(t, err)
	_, err = calls["unary"](within(t), conn)
	require.Equal(t, codes.Unavailable, status.Code(err))
}

func TestDrainTimeout(t *testing.T) {
	s := startLookaside(t)
	c := registering(s)
	c.DrainNotice, c.DrainTimeout = -1, 5*time.Second
	r, clock := stopped(t, c)
	m := newModel()
	conn, end, ended := serve(t, r, m)
	s.next(t)
	result := make(chan error, 1)
	go func() { _, err := calls["stream"](within(t), conn); result <- err }()
	<-m.entered
	end()
	s.next(t)
	clock.fire(t, 0)
	clock.fire(t, 5*time.Second)
	err := <-ended
	require.ErrorIs(t, err, ErrDrainTimeout)
	require.ErrorContains(t, err, "1 of them, after 5s")
	require.Equal(t, codes.Unavailable, status.Code(<-result))
	require.True(t, s.next(t).GetLeaving())
}

func TestServeRefuses(t *testing.T) {
	everywhere, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	closed := listen(t)
	require.NoError(t, closed.Close())
	for name, c := range map[string]struct {
		config Config
		l      net.Listener
		want   string
	}{
		"no address that clients can use": {Config{Servers: []string{"127.0.0.1:1"}, DialOptions: []grpc.DialOption{plain}}, everywhere, "Replica: address: missing"},
		"no credentials":                  {Config{Servers: []string{"127.0.0.1:1"}}, listen(t), `Servers: "127.0.0.1:1"`},
		"a second server is nonsense":     {Config{Servers: []string{"127.0.0.1:1", "\x7f://"}, DialOptions: []grpc.DialOption{plain}}, listen(t), "Servers: "},
		"a listener that is closed":       {Config{}, closed, "closed"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := New(c.config)
			require.NoError(t, err)
			require.ErrorContains(t, r.Serve(within(t), grpc.NewServer(), c.l), c.want)
			require.ErrorIs(t, r.Serve(within(t), grpc.NewServer(), listen(t)), ErrServed)
		})
	}
}

func TestAddressIsTheListeners(t *testing.T) {
	s := startLookaside(t)
	c := registering(s)
	c.Replica = policy.Attributes{}
	r, clock := stopped(t, c)
	conn, end, ended := serve(t, r, newModel())
	q := s.next(t)
	require.Equal(t, "passthrough:///"+q.GetReplica().GetAddress(), conn.Target())
	require.Equal(t, q.GetReplica().GetAddress(), q.GetReplica().GetId())
	end()
	s.next(t)
	clock.fire(t, time.Second)
	require.NoError(t, <-ended)
}

func TestOwnHealthServiceStays(t *testing.T) {
	r, err := New(Config{})
	require.NoError(t, err)
	s := grpc.NewServer()
	mine := health.NewServer()
	healthpb.RegisterHealthServer(s, mine)
	r.offerHealth(s) // a second one would end the program
	require.NotSame(t, mine, r.Health())
}

func TestConfigNamesTheField(t *testing.T) {
	for want, c := range map[string]Config{
		"Replica: address":                              {Replica: policy.Attributes{Address: "nowhere"}},
		"Replica: max_ongoing_requests: -1":             {Replica: policy.Attributes{MaxOngoing: -1}},
		"Replica: max_ongoing_requests: 1099511627776 ": {Replica: policy.Attributes{MaxOngoing: 1 << 40}},
		"Replica: weight: NaN is not a finite number":   {Replica: policy.Attributes{Weight: math.NaN()}},
		"Replica: id":  {Replica: policy.Attributes{ID: "a b", Address: "a:1"}},
		"KVTokens: -1": {KVTokens: -1},
		"Lease: 1ms is not between 1s and 1h0m0s": {Lease: time.Millisecond},
		"DrainTimeout: -1s":                       {DrainTimeout: -time.Second},
	} {
		_, err := New(c)
		require.ErrorContains(t, err, want)
	}
}
