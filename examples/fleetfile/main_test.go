package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/examples/stubs/fake"
	"github.com/warmpath/warmpath/internal/fleetfile"
)

// write replaces the fleet file atomically.
func write(t *testing.T, path, format string, args ...any) {
	t.Helper()
	require.NoError(t, os.WriteFile(path+".new", fmt.Appendf(nil, format, args...), 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

// met waits for the connection to a replica.
func met(t *testing.T, conn *grpc.ClientConn, id string) {
	t.Helper()
	require.Eventually(t, func() bool {
		replica, err := ask(client.WithPin(t.Context(), id), conn, "")
		return err == nil && replica == id
	}, 20*time.Second, 2*time.Millisecond)
}

func TestFleetFile(t *testing.T) {
	_, servers, stop, err := fake.Fleet(3)
	require.NoError(t, err)
	defer stop()
	a, b, c := servers[0].Addr(), servers[1].Addr(), servers[2].Addr()
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	write(t, path, `replicas:
- {id: a, address: %q, zone: z1, adapters: [french]}
- {id: b, address: %q, zone: z2, adapters: [german]}
- {id: c, address: %q, zone: z2, adapters: [german, french]}
`, a, b, c)
	conn, err := dial(path, "z1")
	require.NoError(t, err)
	defer conn.Close()
	for _, id := range []string{"a", "b", "c"} {
		met(t, conn, id)
	}
	went := func(adapter string) map[string]bool {
		ids := make(map[string]bool)
		for range 10 {
			id, err := ask(t.Context(), conn, adapter)
			require.NoError(t, err)
			ids[id] = true
		}
		return ids
	}
	require.Equal(t, map[string]bool{"a": true}, went(""), "the zone comes first")
	require.NotContains(t, went("german"), "a", "the adapter comes before the zone")

	// b leaves, c drains: a is the only one left.
	write(t, path, `replicas:
- {id: a, address: %q, zone: z1, adapters: [french]}
- {id: c, address: %q, zone: z2, adapters: [german, french], draining: true}
`, a, c)
	require.Eventually(t, func() bool {
		ids := went("german")
		return len(ids) == 1 && ids["a"]
	}, 20*time.Second, 2*time.Millisecond)
}

func TestTheFileBesideTheProgramIsGood(t *testing.T) {
	replicas, err := fleetfile.Load("fleet.yaml")
	require.NoError(t, err)
	require.Len(t, replicas, 3)
}
