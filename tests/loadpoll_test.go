package tests

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/warmpath/warmpath/lab/enginesim"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
	"github.com/warmpath/warmpath/server"
)

// The look-aside server reads from an engine the load of other clients and the size of its cache, and reports them to
// watchers.
func TestLoadIsPolled(t *testing.T) {
	for _, by := range []string{"grpc", "http"} {
		t.Run(by, func(t *testing.T) {
			engine, err := grpcserver.Start(listenLoopback(t), grpcserver.Config{Engine: enginesim.Config{KVTokens: 32_000}, Speed: 1e-6}) // as good as stopped
			require.NoError(t, err)
			t.Cleanup(engine.Kill)
			from := "grpc:vllm"
			if by == "http" {
				from = metricsPage(t, engine)
			}
			busyWith(t, engine, 3)
			conn := lookAsideConn(t, fmt.Sprintf(`
load_interval: 10ms
deployments:
  chat:
    load_poll: %q
    replicas: [{id: a, address: %q}]
`, from, engine.Addr()), server.Options{Logger: slog.New(slog.DiscardHandler)})
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			watch, err := warmpathv1.NewRoutingServiceClient(conn).WatchReplicas(ctx)
			require.NoError(t, err)
			require.NoError(t, watch.Send(&warmpathv1.WatchReplicasRequest{Start: &warmpathv1.WatchStart{ClientId: "x", Load: true}}))
			var ongoing uint32
			var kvTokens uint64
			for ongoing != 3 || kvTokens != 32_000 {
				m, err := watch.Recv()
				require.NoError(t, err)
				for _, r := range m.GetFleet().GetReplicas() {
					kvTokens = r.GetKvTokens()
				}
				for _, n := range m.GetLoad().GetLoads().GetOngoing() {
					ongoing = n
				}
			}
		})
	}
}

func metricsPage(t *testing.T, engine *grpcserver.Server) (from string) {
	lis := listenLoopback(t)
	s := &http.Server{Handler: http.HandlerFunc(engine.ServeMetrics)}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Serve(lis) }()
	t.Cleanup(func() { _ = s.Close(); <-ended })
	_, port, err := net.SplitHostPort(lis.Addr().String())
	require.NoError(t, err)
	return "http://HOST:" + port + "/metrics"
}

// busyWith keeps a number of requests under way until the test ends.
func busyWith(t *testing.T, engine *grpcserver.Server, n int) {
	conn, err := grpc.NewClient(engine.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	for i := range n {
		stream, err := enginepb.NewVllmEngineClient(conn).Generate(t.Context(), &enginepb.GenerateRequest{
			RequestId: fmt.Sprint(i), Input: &enginepb.GenerateRequest_Text{Text: fmt.Sprintf("%0400d", i)}, Stream: true,
		})
		require.NoError(t, err)
		_ = stream
	}
	eventually(t, "it is busy", func() bool { l := engine.Stats().Load; return l.Running+l.Waiting == n })
}
