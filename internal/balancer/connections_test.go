package balancer

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/fleet"
)

// fakeConn is a ready connection, and also its picker and producer.
type fakeConn struct {
	balancer.SubConn
	grpc.ClientConnInterface
	address string
}

func (c *fakeConn) Pick(balancer.PickInfo) (balancer.PickResult, error) {
	return balancer.PickResult{SubConn: c}, nil
}

func (c *fakeConn) GetOrBuildProducer(balancer.ProducerBuilder) (balancer.Producer, func()) {
	return c, nil
}

func ready(address string) *balancer.State {
	return &balancer.State{ConnectivityState: connectivity.Ready, Picker: &fakeConn{address: address}}
}

// Connections go with their addresses, whichever way ids move in one update: a request for a replica does not get
// another one's connection before gRPC reports the new ones.
func TestConnectionsOfIDsThatMove(t *testing.T) {
	for _, tt := range []struct {
		name string
		now  []string // id=address; before it was a=1, b=2, c=3
		want map[string]string
	}{
		{"as before", []string{"a=1", "b=2", "c=3"}, map[string]string{"a": "1", "b": "2", "c": "3"}},
		{"swapped", []string{"b=1", "a=2", "c=3"}, map[string]string{"b": "1", "a": "2", "c": "3"}},
		{"round", []string{"b=1", "c=2", "a=3"}, map[string]string{"b": "1", "c": "2", "a": "3"}},
		{"into the place of one that left", []string{"a=2", "c=3"}, map[string]string{"a": "2", "c": "3"}},
		{"to a new address", []string{"a=4", "b=2", "c=3"}, map[string]string{"b": "2", "c": "3"}},
		{"to a new id", []string{"a=1", "b=2", "d=3"}, map[string]string{"a": "1", "b": "2", "d": "3"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newLB()
			update := func(list ...string) {
				var all []resolver.Endpoint
				for _, s := range list {
					all = append(all, fleet.Endpoint(policy.Attributes{ID: s[:1], Address: s[2:]}))
				}
				b.endpoints.set(b, all)
			}
			update("a=1", "b=2", "c=3")
			for ep, e := range b.endpoints.all.All() {
				b.endpoints.put(e, ready(ep.Addresses[0].Addr))
			}
			update(tt.now...)
			got := make(map[string]string)
			for _, id := range []string{"a", "b", "c", "d"} {
				ended, end := context.WithCancel(t.Context())
				end()
				if c, err := b.direct(ended, id); err == nil {
					got[id] = c.(*fakeConn).address
				}
			}
			require.Equal(t, tt.want, got)
		})
	}
}

// A connection that is awaited with the balancer's lock held is available without it.
func TestConnectionsWhileTheBalancerIsLocked(t *testing.T) {
	b := newLB()
	b.mu.Lock()
	defer b.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	got := make(chan string, 1)
	go func() {
		if c, err := b.direct(ctx, "a"); err == nil {
			got <- c.(*fakeConn).address
		}
	}()
	b.endpoints.set(b, []resolver.Endpoint{
		fleet.Endpoint(policy.Attributes{ID: "a", Address: "1"}),
	})
	for _, e := range b.endpoints.all.All() {
		b.endpoints.put(e, ready("1"))
	}
	b.endpoints.reach(b.endpoints.reachable.Load().byID)
	select {
	case address := <-got:
		require.Equal(t, "1", address)
	case <-ctx.Done():
		t.Fatal("it waits for the lock")
	}
}
