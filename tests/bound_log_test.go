package tests

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/warmpath/warmpath/client"
)

// lines returns those with a text.
func (l *logged) lines(text string) (found []string) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// Issue 12.25: the log describes a bound channel in one line, and again only when the config changes.
func TestBoundChannelsAreLogged(t *testing.T) {
	rs := replicas(t, 1)
	object := `{"policy":{"consistent_hash":{"num_fallback_replicas":1}},"session_keys":["user"],"max_attempts":2}`
	for _, how := range []string{"New", "DialOptions", "bare"} {
		t.Run(how, func(t *testing.T) {
			var log logged
			var cc *grpc.ClientConn
			if how == "bare" {
				old := slog.Default()
				slog.SetDefault(log.logger())
				t.Cleanup(func() { slog.SetDefault(old) })
				cc = channelOf(t, how, object, rs)
			} else {
				cc = dialled(t, how, target(rs...), []client.Option{client.WithConfig(object), client.WithLogger(log.logger())}, grpc.WithIdleTimeout(50*time.Millisecond))
				defer func() { require.NoError(t, cc.Close()) }()
			}
			for range 2 {
				where(t, client.WithSession(deadline(t), "s"), cc, "x")
				if how != "bare" {
					sleeps(t, cc)
				}
			}
			found := log.lines("the channel is bound")
			require.Len(t, found, 1)
			for _, part := range []string{"level=INFO", "warmpath:///" + rs[0].addr, "policy=consistent_hash", "session_keys=[user]", "mode=broadcast", `\"max_attempts\":2`, `\"num_fallback_replicas\":1`} {
				require.Contains(t, found[0], part)
			}
			require.NotContains(t, found[0], "retry_ratio", "it is as by default")
			require.Empty(t, log.lines("level=WARN"))
		})
	}
	t.Run("another config", func(t *testing.T) {
		sc := func(n int) string {
			return fmt.Sprintf(`{"loadBalancingConfig":[{"warmpath":{"policy":{"round_robin":{}},"max_attempts":%d}}]}`, n)
		}
		var log logged
		d := newDirectory("logged", state(sc(2), rs...))
		cc := dial(t, "logged:///x", client.WithLogger(log.logger()), grpc.WithResolvers(d))
		where(t, deadline(t), cc, "x")
		d.set(state(sc(2), rs...))
		require.Len(t, log.lines("the channel is bound"), 1)
		d.set(state(sc(4), rs...))
		require.Len(t, log.lines("the channel is bound"), 2)
	})
}

// Issue 12.25: when a policy that needs a key finds none, one log line reports it and names the remedy.
func TestMissingKeyIsLoggedOnce(t *testing.T) {
	for _, policy := range []string{"consistent_hash", "kv_aware"} {
		t.Run(policy, func(t *testing.T) {
			var log logged
			rs := []*replica{{beside: func(s *grpc.Server) { grpc_health_v1.RegisterHealthServer(s, healthy{}) }}}
			start(t, rs[0])
			cc := dial(t, target(rs...), client.WithLogger(log.logger()), client.WithConfig(config(`{"`+policy+`":{}}`)))
			stub := testpb.NewTestServiceClient(cc)
			_, err := grpc_health_v1.NewHealthClient(cc).Check(deadline(t), new(grpc_health_v1.HealthCheckRequest))
			require.NoError(t, err)
			_, err = stub.UnaryCall(client.WithSession(deadline(t), "s"), simple(strings.Repeat("prompt ", 100)))
			require.NoError(t, err)
			require.Empty(t, log.lines("level=WARN"))
			for range 3 {
				where(t, deadline(t), cc, "")
			}
			found := log.lines("level=WARN")
			require.Len(t, found, 1)
			for _, part := range []string{"carries no key", policy, unaryMethod, "client.WithSession"} {
				require.Contains(t, found[0], part)
			}
		})
	}
}

type healthy struct {
	grpc_health_v1.UnimplementedHealthServer
}

func (healthy) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	return new(grpc_health_v1.HealthCheckResponse), nil
}
