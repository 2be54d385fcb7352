package real

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/warmpath/warmpath/client"
)

// plain opens a channel of grpc.NewClient with gRPC's own round_robin.
func plain(t testing.TB, engines []*engine) *grpc.ClientConn {
	t.Helper()
	fleet := manual.NewBuilderWithScheme("plain")
	var addresses []resolver.Address
	for _, e := range engines {
		addresses = append(addresses, resolver.Address{Addr: e.addr})
	}
	fleet.InitialState(resolver.State{Addresses: addresses})
	conn, err := grpc.NewClient("plain:///", grpc.WithResolvers(fleet), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn
}

// Engines find at least 15 points more of the prompt tokens in their caches than under gRPC's round_robin, with KV events
// and without. The answers are the same.
func TestMoreIsCachedThanUnderRoundRobin(t *testing.T) {
	trace := conversations(36, 2)
	played := func(open func(engines []*engine) *grpc.ClientConn) [][]answer {
		engines := shared(t) // with empty caches
		return play(t.Context(), trace, 8, viaEngine(open(engines)))
	}
	base := played(func(engines []*engine) *grpc.ClientConn { return plain(t, engines) })
	least, want := cachedOf(t, base)+0.15, outputs(t, base)
	t.Logf("round_robin: %.1f %% cached", 100*cachedOf(t, base))
	for name, options := range map[string][]grpc.DialOption{
		"predicted caches": nil,
		"KV events":        {client.WithConfig(`{"kv_events":"grpc:vllm"}`)},
	} {
		t.Run(name, func(t *testing.T) {
			ours := played(func(engines []*engine) *grpc.ClientConn { return dial(t, target(engines), options...) })
			require.Equal(t, want, outputs(t, ours))
			t.Logf("%s: %.1f %% cached", name, 100*cachedOf(t, ours))
			require.Greater(t, cachedOf(t, ours), least)
		})
	}
}
