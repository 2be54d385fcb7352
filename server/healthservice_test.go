package server

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const unknownService = healthpb.HealthCheckResponse_SERVICE_UNKNOWN

// Every caller may read the server's health; that of a deployment only the principals that may use it.
func TestHealth(t *testing.T) {
	closed := startTenants(t)
	open := start(t, several)
	const whole = "warmpath.v1.RoutingService"
	for p, tt := range map[string]struct {
		f     *fixture
		token string
		names []string
	}{
		"open":       {open, "", []string{"", "chat", "code", "empty", whole}},
		"trusted":    {closed, trustedToken, []string{"", "chat", "code", whole}},
		"one of two": {closed, chatToken, []string{"", "chat", whole}},
		"no token":   {closed, "", []string{"", whole}},
		"wrong":      {closed, "wrong-0123456789", []string{"", whole}},
	} {
		t.Run(p, func(t *testing.T) {
			h := healthpb.NewHealthClient(tt.f.conn)
			if tt.token != "" {
				h = healthpb.NewHealthClient(tt.f.as(t, insecure.NewCredentials(), tt.token))
			}
			all, err := h.List(soon(t), new(healthpb.HealthListRequest))
			require.NoError(t, err)
			require.Equal(t, tt.names, slices.Sorted(maps.Keys(all.GetStatuses())))
			for _, name := range []string{"", whole, "chat", "code", "empty", "none", strings.Repeat("x", 1000)} {
				known := slices.Contains(tt.names, name)
				a, err := h.Check(soon(t), &healthpb.HealthCheckRequest{Service: name})
				stream, errWatch := h.Watch(soon(t), &healthpb.HealthCheckRequest{Service: name})
				require.NoError(t, errWatch)
				first, errWatch := stream.Recv()
				switch {
				case known:
					want := isServing
					if name == "empty" {
						want = notServing
					}
					require.NoError(t, err, name)
					require.Equal(t, want, a.GetStatus())
					require.NoError(t, errWatch)
					require.Equal(t, want, first.GetStatus())
				case len(name) > maxName:
					require.Equal(t, codes.NotFound, status.Code(err))
					require.Equal(t, codes.InvalidArgument, status.Code(errWatch))
				default:
					require.Equal(t, codes.NotFound, status.Code(err), name)
					require.NoError(t, errWatch)
					require.Equal(t, unknownService, first.GetStatus())
				}
			}
		})
	}
}

// A health watch follows deployments that are added or removed and the permissions of its caller. It does not delay a
// shutdown.
func TestHealthWatch(t *testing.T) {
	f := startTenants(t)
	text := tenants[:strings.Index(tenants, "- {name: team")] + `- {name: team, token: only-chat-0123456789, deployments: [DEPLOYMENTS]}
` + tenants[strings.Index(tenants, "deployments:\n"):]
	with := func(names string) *Config { return parse(t, strings.Replace(text, "DEPLOYMENTS", names, 1)) }
	h := healthpb.NewHealthClient(f.as(t, insecure.NewCredentials(), chatToken))
	watch := func(name string) func(healthpb.HealthCheckResponse_ServingStatus) {
		stream, err := h.Watch(soon(t), &healthpb.HealthCheckRequest{Service: name})
		require.NoError(t, err)
		return func(want healthpb.HealthCheckResponse_ServingStatus) {
			t.Helper()
			m, err := stream.Recv()
			if want < 0 {
				require.Equal(t, codes.Unavailable, status.Code(err))
				return
			}
			require.NoError(t, err)
			require.Equal(t, want, m.GetStatus())
		}
	}
	chat, code, whole := watch("chat"), watch("code"), watch("")
	chat(isServing)
	code(unknownService)
	whole(isServing)
	require.NoError(t, f.Update(with("chat, code")))
	code(isServing)
	require.NoError(t, f.Update(with("code")))
	chat(unknownService)
	c := with("code")
	delete(c.Deployments, "code")
	require.NoError(t, f.Update(c))
	code(unknownService)
	require.NoError(t, f.Shutdown(soon(t)), "it does not wait for watches")
	whole(notServing)
	whole(-1)
	chat(-1)
}

// Callers without a valid token may hold half of the health watches.
func TestHealthWatchesAreBounded(t *testing.T) {
	f := startTenants(t)
	h := &healthService{Server: f.Server}
	enter := func(p string) codes.Code {
		return status.Code(h.enter(asToken(p)))
	}
	for range maxHealthWatches / 2 {
		require.Equal(t, codes.OK, enter("wrong"))
	}
	require.Equal(t, codes.ResourceExhausted, enter("wrong"))
	for range maxHealthWatches / 2 {
		require.Equal(t, codes.OK, enter(chatToken))
	}
	require.Equal(t, codes.ResourceExhausted, enter(chatToken))
	require.EqualValues(t, maxHealthWatches, h.watches.Load())
}

func asToken(token string) context.Context {
	return metadata.NewIncomingContext(context.Background(), metadata.Pairs("authorization", "Bearer "+token))
}
