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
	"google.golang.org/grpc/credentials/insecure"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/lab/enginesim/kvpublish"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
	"github.com/warmpath/warmpath/server"
)

// lookAside is a look-aside server on the loopback.
func lookAside(t *testing.T, config string) warmpathv1.RoutingServiceClient {
	t.Helper()
	return warmpathv1.NewRoutingServiceClient(lookAsideConn(t, config, server.Options{Logger: slog.New(slog.DiscardHandler)}))
}

// lookAsideConn is a connection to a look-aside server on the loopback.
func lookAsideConn(t *testing.T, config string, o server.Options) *grpc.ClientConn {
	t.Helper()
	c, err := server.ParseConfig([]byte(config))
	require.NoError(t, err)
	s, err := server.New(c, o)
	require.NoError(t, err)
	lis := listenLoopback(t)
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		conn.Close()
		s.Close()
		require.NoError(t, <-served)
	})
	return conn
}

// The server follows the engines' KV events: it finds a warm replica for a prompt that it never routed, and reports
// its superblocks to watchers.
func TestKVEventsReachTheLookAsideServer(t *testing.T) {
	var fleet strings.Builder
	var engines []*simulated
	for i, encoding := range []kvpublish.Encoding{"", kvpublish.Maps} {
		s := simulate(t, encoding, nil)
		engines = append(engines, s)
		fmt.Fprintf(&fleet, "    - {id: r%d, address: %q, kv_events: %q, kv_events_replay: %q}\n", i, s.feed.addr(), s.kvEvents(), s.kvEventsReplay())
	}
	pb := lookAside(t, "load_interval: 10ms\ndeployments:\n  chat:\n    policy: {kv_aware: {}}\n    replicas:\n"+fleet.String())
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	watch, err := pb.WatchReplicas(ctx)
	require.NoError(t, err)
	require.NoError(t, watch.Send(&warmpathv1.WatchReplicasRequest{Start: &warmpathv1.WatchStart{ClientId: "x", Index: true}}))

	reported := make(map[uint32]map[uint64]bool) // by number of the replica
	for n, engine := range engines {
		prompt := make([]uint32, 1500) // worth more than a near tie
		for i := range prompt {
			prompt[i] = uint32(2000*n + i)
		}
		require.NoError(t, engine.ask(fmt.Sprint("warm ", n), prompt, 1))
		end := kvindex.AppendTokens(nil, prompt, 16, kvindex.SeedFor("", "", ""))[policy.SuperblockTokens/16-1]
		for !reported[uint32(n+1)][end] {
			m, err := watch.Recv()
			require.NoError(t, err)
			for _, c := range m.GetIndex().GetChanges() {
				if reported[c.GetReplica()] == nil {
					reported[c.GetReplica()] = make(map[uint64]bool)
				}
				for _, h := range c.GetStored() {
					reported[c.GetReplica()][h] = true
				}
			}
		}
		a, err := pb.ChooseReplica(ctx, &warmpathv1.ChooseReplicaRequest{
			Mode: warmpathv1.PickMode_PICK_MODE_QUERY,
			Key:  &warmpathv1.RequestKey{Prompt: &warmpathv1.RequestKey_TokenIds{TokenIds: &warmpathv1.TokenIds{Ids: prompt}}},
		})
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint("r", n), a.GetReplica().GetId())
		require.GreaterOrEqual(t, a.GetDecision().GetMatchedTokens(), uint32(policy.SuperblockTokens))
	}
}
