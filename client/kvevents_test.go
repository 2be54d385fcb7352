package client_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/warmpath/warmpath/client"
)

// A channel whose config needs ZeroMQ is refused where that is not linked, and the error names the import. Events
// over gRPC need none.
func TestZeroMQIsLinkedByImport(t *testing.T) {
	deps, err := exec.Command("go", "list", "-deps", "github.com/warmpath/warmpath/client").Output()
	require.NoError(t, err)
	require.NotContains(t, string(deps), "zmq")
	require.NotContains(t, string(deps), "/msgp")
	for events, refused := range map[string]bool{"tcp://HOST:5557": true, "sources:vllm": true, "grpc:vllm": false} {
		conn, err := client.New("warmpath:///a:1", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultServiceConfig(fmt.Sprintf(`{"loadBalancingConfig":[{"warmpath":{"kv_events":%q}}]}`, events)))
		if !refused {
			require.NoError(t, err)
			require.NoError(t, conn.Close())
			continue
		}
		require.ErrorContains(t, err, `import _ "github.com/warmpath/warmpath/balancer/kvevents"`)
		require.True(t, strings.Contains(err.Error(), "kv_events"), err)
	}
}
