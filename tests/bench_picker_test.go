package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/balancer"
	_ "google.golang.org/grpc/balancer/leastrequest"
	_ "google.golang.org/grpc/balancer/ringhash"
	_ "google.golang.org/grpc/balancer/roundrobin"
	"google.golang.org/grpc/connectivity"
	estats "google.golang.org/grpc/experimental/stats"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"

	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/lab/race"
)

// The benchmarks compare the bare pickers of gRPC's policies and of warmpath's: the real balancers over connections
// that are always ready.

// fakeConn is a channel whose connections are ready as soon as they are asked for.
type fakeConn struct {
	balancer.ClientConn
	picker atomic.Pointer[balancer.State]
	queue  []func() // of what gRPC's serialiser would run
}

func (c *fakeConn) NewSubConn(_ []resolver.Address, o balancer.NewSubConnOptions) (balancer.SubConn, error) {
	return &fakeSubConn{conn: c, listen: o.StateListener}, nil
}
func (c *fakeConn) UpdateState(s balancer.State)                         { c.picker.Store(&s) }
func (c *fakeConn) ResolveNow(resolver.ResolveNowOptions)                {}
func (c *fakeConn) RemoveSubConn(balancer.SubConn)                       {}
func (c *fakeConn) Target() string                                       { return "fake" }
func (c *fakeConn) MetricsRecorder() estats.MetricsRecorder              { return noMetrics{} }
func (c *fakeConn) UpdateAddresses(balancer.SubConn, []resolver.Address) {}

func (c *fakeConn) run() {
	for len(c.queue) > 0 {
		next := c.queue[0]
		c.queue = c.queue[1:]
		next()
	}
}

type noMetrics struct{ estats.MetricsRecorder }

func (noMetrics) RecordInt64Count(*estats.Int64CountHandle, int64, ...string)             {}
func (noMetrics) RecordInt64Gauge(*estats.Int64GaugeHandle, int64, ...string)             {}
func (noMetrics) RecordInt64UpDownCount(*estats.Int64UpDownCountHandle, int64, ...string) {}
func (noMetrics) RecordFloat64Histo(*estats.Float64HistoHandle, float64, ...string)       {}

type fakeSubConn struct {
	balancer.SubConn
	conn   *fakeConn
	listen func(balancer.SubConnState)
}

func (s *fakeSubConn) Connect() {
	s.conn.queue = append(s.conn.queue, func() {
		s.listen(balancer.SubConnState{ConnectivityState: connectivity.Connecting})
		s.listen(balancer.SubConnState{ConnectivityState: connectivity.Ready})
	})
}
func (s *fakeSubConn) Shutdown()                          {}
func (s *fakeSubConn) UpdateAddresses([]resolver.Address) {}
func (s *fakeSubConn) RegisterHealthListener(l func(balancer.SubConnState)) {
	s.conn.queue = append(s.conn.queue, func() { l(balancer.SubConnState{ConnectivityState: connectivity.Ready}) })
}
func (s *fakeSubConn) GetOrBuildProducer(balancer.ProducerBuilder) (balancer.Producer, func()) {
	return nil, func() {}
}

// readyPicker drives a registered policy over n endpoints until all are ready.
func readyPicker(t testing.TB, name, config string, n int) (balancer.Picker, func()) {
	t.Helper()
	b := balancer.Get(name)
	require.NotNil(t, b, name)
	var parsed serviceconfig.LoadBalancingConfig
	if p, ok := b.(balancer.ConfigParser); ok {
		var err error
		parsed, err = p.ParseConfig(json.RawMessage(config))
		require.NoError(t, err)
	}
	cc := &fakeConn{}
	lb := b.Build(cc, balancer.BuildOptions{})
	var eps []resolver.Endpoint
	for i := range n {
		eps = append(eps, resolver.Endpoint{Addresses: []resolver.Address{{Addr: fmt.Sprintf("10.0.%d.%d:50051", i/256, i%256)}}})
	}
	require.NoError(t, lb.UpdateClientConnState(balancer.ClientConnState{
		ResolverState: resolver.State{Endpoints: eps}, BalancerConfig: parsed,
	}))
	cc.run()
	for i := range 1000 + 100*n { // ring_hash connects to what it picks
		ctx := metadata.AppendToOutgoingContext(context.Background(), "session_id", strconv.Itoa(i))
		if r, err := cc.picker.Load().Picker.Pick(balancer.PickInfo{Ctx: ctx}); err == nil && r.Done != nil {
			r.Done(balancer.DoneInfo{BytesSent: true})
		}
		cc.run()
	}
	require.Equal(t, connectivity.Ready, cc.picker.Load().ConnectivityState)
	return cc.picker.Load().Picker, lb.Close
}

func BenchmarkPicker(b *testing.B) {
	session := metadata.AppendToOutgoingContext(context.Background(), "session_id", "user_42")
	pickers := []struct {
		name, policy, config string
		ctx                  context.Context
	}{
		{"grpc/round_robin", "round_robin", `{}`, context.Background()},
		{"grpc/least_request", "least_request_experimental", `{}`, context.Background()},
		{"grpc/ring_hash", "ring_hash_experimental", `{"requestHashHeader":"session_id"}`, session},
		{"warmpath/round_robin", "warmpath", `{"policy":{"round_robin":{}}}`, context.Background()},
		{"warmpath/power_of_two_choices", "warmpath", `{"policy":{"power_of_two_choices":{}}}`, context.Background()},
		{"warmpath/consistent_hash", "warmpath", `{"policy":{"consistent_hash":{}}}`, client.WithSession(context.Background(), "user_42")},
		{"warmpath/consistent_hash_metadata", "warmpath", `{"policy":{"consistent_hash":{}}}`, session},
	}
	for _, n := range []int{8, 64, 512} {
		for _, p := range pickers {
			b.Run(fmt.Sprintf("n=%d/%s", n, p.name), func(b *testing.B) {
				picker, stop := readyPicker(b, p.policy, p.config, n)
				defer stop()
				info := balancer.PickInfo{FullMethodName: "/vllm.Inference/Generate", Ctx: p.ctx}
				b.Run("serial", func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						pickAndDone(b, picker, info)
					}
				})
				b.Run("parallel", func(b *testing.B) {
					b.ReportAllocs()
					b.RunParallel(func(pb *testing.PB) {
						for pb.Next() {
							pickAndDone(b, picker, info)
						}
					})
				})
			})
		}
	}
}

func pickAndDone(t testing.TB, p balancer.Picker, info balancer.PickInfo) {
	r, err := p.Pick(info)
	if err != nil {
		t.Fatal(err)
	}
	if r.Done != nil {
		r.Done(balancer.DoneInfo{BytesSent: true, BytesReceived: true})
	}
}

// Of the above figures, a test may assert only allocations.
func TestBarePicksDoNotAllocate(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	for _, policy := range []string{"round_robin", "power_of_two_choices", "consistent_hash"} {
		picker, stop := readyPicker(t, "warmpath", `{"policy":{"`+policy+`":{}}}`, 8)
		info := balancer.PickInfo{Ctx: client.WithSession(context.Background(), "user_42")}
		require.Zero(t, testing.AllocsPerRun(1000, func() { pickAndDone(t, picker, info) }), policy)
		stop()
	}
}
