package tests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/warmpath/warmpath/client"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/lab/enginesim/kvpublish"
)

// A client sees which prefixes other clients have warmed: a prompt that it never sent goes to a warm replica.
func TestKVEventsReachTheRouter(t *testing.T) {
	for name, c := range map[string]struct {
		encoding kvpublish.Encoding
		channel  string // the channel's own config
		entry    func(*simulated) string
	}{
		"ZeroMQ": {kvpublish.Maps, "{}", func(s *simulated) string {
			return fmt.Sprintf("kv_events: %q, kv_events_replay: %q", s.kvEvents(), s.kvEventsReplay())
		}},
		"gRPC":            {"", "{}", func(s *simulated) string { return "kv_events: " + s.kvEvents() }},
		"for all of them": {"", `{"kv_events":"grpc:vllm"}`, func(*simulated) string { return "weight: 1" }},
	} {
		t.Run(name, func(t *testing.T) {
			var fleet strings.Builder
			var engines []*simulated
			for i := range 3 {
				s := simulate(t, c.encoding, nil)
				engines = append(engines, s)
				fmt.Fprintf(&fleet, "- {id: r%d, address: %q, %s}\n", i, s.feed.addr(), c.entry(s))
			}
			path := filepath.Join(t.TempDir(), "fleet.yaml")
			require.NoError(t, os.WriteFile(path, []byte("replicas:\n"+fleet.String()), 0o600))
			conn, err := client.New("warmpath-file://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithDisableServiceConfig(), grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"warmpath":`+c.channel+`}]}`))
			require.NoError(t, err)
			defer conn.Close()

			warmed := func(n int) bool {
				prompt := make([]uint32, 20*16)
				for i := range prompt {
					prompt[i] = uint32(1000*n + i)
				}
				if err := engines[n%3].ask(fmt.Sprint("warm ", n), prompt, 1); err != nil {
					t.Error(err)
				}
				var d client.Decision
				stream, err := enginepb.NewVllmEngineClient(conn).Generate(client.WithDecision(context.Background(), &d), &enginepb.GenerateRequest{
					RequestId: fmt.Sprint(n), Input: &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: prompt}},
				})
				for err == nil {
					_, err = stream.Recv()
				}
				return d.Replica == fmt.Sprint("r", n%3) && d.MatchedTokens > 0
			}
			n := 0
			require.Eventually(t, func() bool { n++; return warmed(n) }, time.Minute, time.Millisecond)
			for _, e := range engines {
				e.cutEvents()
			}
			require.Eventually(t, func() bool { n++; return warmed(n) }, time.Minute, time.Millisecond, "after all connections broke")
		})
	}
}

func TestKVEventsOfAChannelAreChecked(t *testing.T) {
	_, err := client.New("warmpath:///a:1", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"warmpath":{"kv_events":"udp://HOST:1"}}]}`))
	require.ErrorContains(t, err, "kv_events")
}

// A replica that is down does not delay a change of the configuration: its event stream, which waits for a
// connection, ends at once.
func TestKVEventsOfAReplicaThatIsDownEnd(t *testing.T) {
	const events = `"kv_events":"grpc:vllm"`
	for _, tt := range []struct {
		name    string
		configs [2]string // in turn
	}{
		{"the policy changes", [2]string{
			config(`{"kv_aware":{}}`, events), config(`{"consistent_hash":{}}`, events),
		}},
		{"the last source goes", [2]string{config(`{"kv_aware":{}}`, events), config(`{"kv_aware":{}}`)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			up, down := start(t, &replica{}), listenLoopback(t)
			require.NoError(t, down.Close())
			res := manual.NewBuilderWithScheme("down")
			cc, err := client.New("down:///", insecureOption(), grpc.WithResolvers(res))
			require.NoError(t, err)
			cc.Connect()
			ctx := deadline(t)
			inTime := func(what string, f func()) { // a channel that hangs does not block the test
				t.Helper()
				done := make(chan struct{})
				go func() { defer close(done); f() }()
				select {
				case <-done:
				case <-ctx.Done():
					t.Fatal(what, "does not end")
				}
			}
			for i := range 10 {
				inTime("the update", func() {
					res.UpdateState(resolver.State{
						Addresses:     []resolver.Address{{Addr: up.addr}, {Addr: down.Addr().String()}},
						ServiceConfig: res.CC().ParseServiceConfig(`{"loadBalancingConfig":[{"warmpath":` + tt.configs[i%2] + `}]}`),
					})
				})
				require.Equal(t, up.addr, where(t, ctx, cc, fmt.Sprint(i)))
			}
			inTime("Close", func() { _ = cc.Close() })
		})
	}
}
