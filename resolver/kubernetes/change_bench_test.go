package kubernetes

import (
	"context"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/target"
)

// changing is a Service with 1,000 endpoints in ten slices, one of which is alternately ready and not ready.
type changing struct {
	union *union
	all   []*discoveryv1.EndpointSlice
	forms [2][]byte // of the slice that changes
	next  int
}

func newChanging(b *testing.B) *changing {
	c := &changing{union: newUnion(testService), all: thousand()}
	for i, isReady := range []*bool{yes, no} {
		c.all[3].Endpoints[7].Conditions.Ready = isReady
		var err error
		c.forms[i], err = c.all[3].Marshal()
		require.NoError(b, err)
	}
	return c
}

// change returns the resolver's state after the next change, from the bytes of a slice.
func (c *changing) change(b *testing.B) resolver.State {
	c.all[3] = new(discoveryv1.EndpointSlice)
	require.NoError(b, c.all[3].Unmarshal(c.forms[c.next%2]))
	fleet, _, err := c.union.replicas(c.all, time.Time{})
	require.NoError(b, err)
	state := new(target.Channel).State(fleet)
	require.Len(b, state.Endpoints, 1000-c.next%2)
	c.next++
	return state
}

// BenchmarkChange is one change of a Service with 1,000 endpoints, for the resolver alone and with a channel that
// has a connection to each of them. The channel's figure includes gRPC's channelz, which the server links and
// clients do not.
func BenchmarkChange(b *testing.B) {
	b.Run("resolver", func(b *testing.B) {
		c := newChanging(b)
		b.ReportAllocs()
		for b.Loop() {
			c.change(b)
		}
	})
	b.Run("channel", func(b *testing.B) {
		c, fleet := newChanging(b), manual.NewBuilderWithScheme("changing")
		fleet.InitialState(c.change(b))
		connected := connectAll(b, fleet)
		for range 1000 {
			<-connected
		}
		b.ReportAllocs()
		before := processorTime(b)
		for b.Loop() {
			fleet.UpdateState(c.change(b))
			if c.next%2 == 1 {
				<-connected
			}
		}
		b.ReportMetric((processorTime(b)-before).Seconds()*1e3/float64(b.N), "cpu-ms/op")
	})
}

// connectAll connects a channel to a fleet whose replicas are one server. It returns a channel that receives each
// connection.
func connectAll(b *testing.B, fleet resolver.Builder) <-chan struct{} {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	server := grpc.NewServer()
	go func() { _ = server.Serve(lis) }()
	b.Cleanup(server.Stop)
	connected := make(chan struct{}, 1000)
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", lis.Addr().String())
		connected <- struct{}{}
		return conn, err
	}
	cc, err := client.New(fleet.Scheme()+":///", grpc.WithResolvers(fleet), grpc.WithContextDialer(dial), grpc.WithNoProxy(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b, err)
	b.Cleanup(func() { _ = cc.Close() })
	cc.Connect()
	return connected
}

// processorTime is what the process has used so far.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
