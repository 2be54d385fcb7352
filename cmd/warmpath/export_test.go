package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A server's metrics and spans go to a collector if OpenTelemetry's environment variables name one.
func TestServeExportsOverOTLP(t *testing.T) {
	config := file(t, "server.yaml", "listen: 127.0.0.1:0\ndeployments: {chat: {policy: {round_robin: {}}, replicas: [{address: 'h:1'}]}}")
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier-pigeon")
	t.Setenv("OTEL_METRICS_EXPORTER", "otlp")
	code, _, wrong := command(t, "serve", "--config", config)
	require.NotZero(t, code)
	require.Contains(t, wrong, "OTEL_EXPORTER_OTLP_PROTOCOL")

	var mu sync.Mutex // guards got
	got := make(map[string]string)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got[r.URL.Path] += string(body)
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "")
	t.Setenv("OTEL_METRICS_EXPORTER", "")
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, log transcript
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, []string{"serve", "--config", config}, &out, &log) }()
	address := regexp.MustCompile(`serves 1 deployment on (\S+)`)
	require.Eventually(t, func() bool { return address.MatchString(out.String()) }, 20*time.Second, 5*time.Millisecond)
	code, _, wrong = command(t, "choose", "--server", address.FindStringSubmatch(out.String())[1])
	require.Zero(t, code, wrong)
	cancel()
	require.Equal(t, exitOK, <-ended, "%s", &log)
	mu.Lock()
	defer mu.Unlock()
	for _, text := range []string{"warmpath.decisions", "round_robin", "warmpath.deployment"} {
		require.Contains(t, got["/v1/metrics"], text)
	}
	for _, text := range []string{"RoutingService/ChooseReplica", "warmpath.replica", "round_robin"} {
		require.Contains(t, got["/v1/traces"], text)
	}
}
