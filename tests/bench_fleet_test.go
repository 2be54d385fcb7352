package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/connectivity"
	estats "google.golang.org/grpc/experimental/stats"
	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	warmpath "github.com/warmpath/warmpath/internal/balancer"
	"github.com/warmpath/warmpath/internal/fleet"
)

// wideConn is a channel whose connections the test opens and breaks one at a time, in the order in which gRPC's
// serialiser would report them.
type wideConn struct {
	balancer.ClientConn
	asked chan *wideSubConn // connections that are to be opened

	mu    sync.Mutex // guards state
	state balancer.State
}

func (c *wideConn) NewSubConn(as []resolver.Address, o balancer.NewSubConnOptions) (balancer.SubConn, error) {
	return &wideSubConn{conn: c, address: as[0].Addr, listen: o.StateListener}, nil
}

func (c *wideConn) UpdateState(s balancer.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = s
}

func (c *wideConn) ResolveNow(resolver.ResolveNowOptions)                {}
func (c *wideConn) RemoveSubConn(balancer.SubConn)                       {}
func (c *wideConn) Target() string                                       { return "wide" }
func (c *wideConn) MetricsRecorder() estats.MetricsRecorder              { return noMetrics{} }
func (c *wideConn) UpdateAddresses(balancer.SubConn, []resolver.Address) {}

type noMetrics struct{ estats.MetricsRecorder }

func (noMetrics) RecordInt64Count(*estats.Int64CountHandle, int64, ...string)             {}
func (noMetrics) RecordInt64Gauge(*estats.Int64GaugeHandle, int64, ...string)             {}
func (noMetrics) RecordInt64UpDownCount(*estats.Int64UpDownCountHandle, int64, ...string) {}
func (noMetrics) RecordFloat64Histo(*estats.Float64HistoHandle, float64, ...string)       {}

// pick asks the picker in force for the replica at a place of the fleet, which may open its connection.
func (c *wideConn) pick(replica int) error {
	c.mu.Lock()
	p := c.state.Picker
	c.mu.Unlock()
	r, err := p.Pick(balancer.PickInfo{Ctx: client.WithPin(context.Background(), replicaID(replica))})
	if err == nil && r.Done != nil {
		r.Done(balancer.DoneInfo{BytesSent: true, BytesReceived: true})
	}
	return err
}

// wideSubConn is one connection.
type wideSubConn struct {
	balancer.SubConn
	conn    *wideConn
	address string
	listen  func(balancer.SubConnState)
	health  func(balancer.SubConnState)
}

func (s *wideSubConn) Connect()                                             { s.conn.asked <- s }
func (s *wideSubConn) Shutdown()                                            {}
func (s *wideSubConn) UpdateAddresses([]resolver.Address)                   {}
func (s *wideSubConn) RegisterHealthListener(l func(balancer.SubConnState)) { s.health = l }
func (s *wideSubConn) GetOrBuildProducer(balancer.ProducerBuilder) (balancer.Producer, func()) {
	return nil, func() {}
}

func (s *wideSubConn) open() {
	s.listen(balancer.SubConnState{ConnectivityState: connectivity.Connecting})
	s.listen(balancer.SubConnState{ConnectivityState: connectivity.Ready})
	s.health(balancer.SubConnState{ConnectivityState: connectivity.Ready})
}

// lose breaks the connection.
func (s *wideSubConn) lose() {
	s.listen(balancer.SubConnState{ConnectivityState: connectivity.Idle})
}

func replicaID(i int) string { return fmt.Sprintf("r%05d", i) }

// wideFleet is a channel with a warmpath balancer over n replicas, none of them connected.
type wideFleet struct {
	*wideConn
	lb        balancer.Balancer
	config    balancer.ClientConnState
	endpoints []resolver.Endpoint
	open      []*wideSubConn // by place; nil = not open
	waiting   []*wideSubConn // by place: asked for and not open
}

func newWideFleet(t testing.TB, name string, n int) *wideFleet {
	t.Helper()
	parsed, err := balancer.Get(warmpath.Name).(balancer.ConfigParser).ParseConfig(json.RawMessage(`{"policy":{"` + name + `":{}}}`))
	require.NoError(t, err)
	f := &wideFleet{wideConn: &wideConn{asked: make(chan *wideSubConn, n)}, open: make([]*wideSubConn, n), waiting: make([]*wideSubConn, n)}
	for i := range n {
		f.endpoints = append(f.endpoints, fleet.Endpoint(policy.Attributes{
			ID: replicaID(i), Address: fmt.Sprintf("10.%d.%d.%d:50051", i>>16, i>>8&255, i&255),
		}))
	}
	f.config.BalancerConfig = parsed
	f.lb = balancer.Get(warmpath.Name).Build(f.wideConn, balancer.BuildOptions{})
	t.Cleanup(f.lb.Close)
	f.update(t, n)
	return f
}

// update makes the first n replicas the fleet.
func (f *wideFleet) update(t testing.TB, n int) {
	f.config.ResolverState = resolver.State{Endpoints: f.endpoints[:n]}
	require.NoError(t, f.lb.UpdateClientConnState(f.config))
}

// connect opens every connection, the last one first, one after the other.
func (f *wideFleet) connect(t testing.TB) {
	for i := len(f.open) - 1; i >= 0; i-- {
		f.touch(t, i)
	}
}

// touch opens the connection of a replica and picks it. In a large fleet a pick asks for the connection.
func (f *wideFleet) touch(t testing.TB, i int) {
	if len(f.open) > warmpath.EagerConnections {
		require.ErrorIs(t, f.pick(i), balancer.ErrNoSubConnAvailable)
	}
	for f.waiting[i] == nil {
		select {
		case s := <-f.asked:
			f.waiting[place(s.address)] = s
		case <-time.After(time.Minute):
			t.Fatalf("the connection to %s is not opened", replicaID(i))
		}
	}
	f.open[i], f.waiting[i] = f.waiting[i], nil
	f.open[i].open()
	require.NoError(t, f.pick(i))
}

func place(address string) int {
	var a, b, c int
	_, _ = fmt.Sscanf(address, "10.%d.%d.%d:", &a, &b, &c)
	return a<<16 + b<<8 + c
}

// processorTime is what the process has used so far.
func processorTime(t testing.TB) time.Duration {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// One replica leaves and comes back: two changes, with all that the balancer does for them.
func BenchmarkFleetChange(b *testing.B) {
	forFleets(b, func(b *testing.B, f *wideFleet, n int) {
		f.connect(b)
		b.ReportAllocs()
		for b.Loop() {
			f.update(b, n-1)
			f.update(b, n)
			if n <= warmpath.EagerConnections {
				f.touch(b, n-1)
			}
		}
	})
}

// All replicas are connected one by one, with a pick each. The figure is what the whole process uses.
func BenchmarkConnectFleet(b *testing.B) {
	for _, policy := range builtinPolicies {
		for _, n := range []int{1000, 10000} {
			b.Run(fmt.Sprintf("%s/n=%d", policy, n), func(b *testing.B) {
				b.ReportAllocs()
				var used time.Duration
				for b.Loop() {
					f := newWideFleet(b, policy, n)
					before := processorTime(b)
					f.connect(b)
					used += processorTime(b) - before
				}
				b.ReportMetric(used.Seconds()/float64(b.N), "cpu-s/fleet")
			})
		}
	}
}

// A connection breaks and is opened again, with a pick after each of them.
func BenchmarkFirstTouch(b *testing.B) {
	forFleets(b, func(b *testing.B, f *wideFleet, n int) {
		f.connect(b)
		b.ReportAllocs()
		for b.Loop() {
			f.open[n/2].lose()
			f.touch(b, n/2)
		}
	})
}

func forFleets(b *testing.B, do func(*testing.B, *wideFleet, int)) {
	for _, policy := range builtinPolicies {
		for _, n := range []int{1000, 10000} {
			b.Run(fmt.Sprintf("%s/n=%d", policy, n), func(b *testing.B) { do(b, newWideFleet(b, policy, n), n) })
		}
	}
}
