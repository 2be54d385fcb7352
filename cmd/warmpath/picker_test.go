package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// The endpoint picker starts and stops with the server, and reports its deployment's health.
func TestServePicks(t *testing.T) {
	path := file(t, "server.yaml", "listen: 127.0.0.1:0\ndeployments: {chat: {replicas: [{id: a, address: 'h:1'}]}, code: {register: true}}")
	for name, want := range map[string]healthpb.HealthCheckResponse_ServingStatus{
		"chat": healthpb.HealthCheckResponse_SERVING, "code": healthpb.HealthCheckResponse_NOT_SERVING,
	} {
		ctx, cancel := context.WithCancel(t.Context())
		var out, log transcript
		ended := make(chan int, 1)
		go func() {
			ended <- run(ctx, []string{"serve", "--config", path, "--ext-proc", "127.0.0.1:0", "--ext-proc-deployment", name}, &out, &log)
		}()
		address := regexp.MustCompile(`picks endpoints for gateways on (\S+)`)
		require.Eventually(t, func() bool { return address.MatchString(out.String()) }, 20*time.Second, 5*time.Millisecond, "%s", &log)
		conn, err := grpc.NewClient(address.FindStringSubmatch(out.String())[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		a, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "readiness"})
		require.NoError(t, err)
		require.Equal(t, want, a.GetStatus())
		require.NoError(t, conn.Close())
		cancel()
		require.Equal(t, exitOK, <-ended, "%s", &log)
	}
	for wrong, args := range map[string][]string{
		"--ext-proc-deployment: there is no deployment": {"--ext-proc", "127.0.0.1:0", "--ext-proc-deployment", "other"},
		"--ext-proc: the address is missing":            {"--ext-proc-test-header"},
		"--ext-proc-fallbacks: 17 is more than 16":      {"--ext-proc", "127.0.0.1:0", "--ext-proc-fallbacks", "17"},
		"--ext-proc: \"x\" is not host:port":            {"--ext-proc", "x"},
		"is not on the loopback":                        {"--ext-proc", "0.0.0.0:0"},
	} {
		code, _, printed := command(t, append([]string{"serve", "--check", "--config", path}, args...)...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, printed, wrong)
	}
}

// Gateways dial without TLS, or with TLS that they do not verify. A server with TLS refuses other connections.
func TestServePicksWithTLS(t *testing.T) {
	cert, key := selfSigned(t, "server")
	verified, err := credentials.NewClientTLSFromFile(cert, "")
	require.NoError(t, err)
	clients := map[string]credentials.TransportCredentials{
		"plaintext": insecure.NewCredentials(), "verified": verified,
		"not verified": credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}),
	}
	for config, refused := range map[string]string{
		"": "verified",
		fmt.Sprintf("tls: {cert: %s, key: %s}\n", cert, key): "plaintext",
	} {
		_, log := servingWith(t, "--ext-proc", "127.0.0.1:0", "--config",
			file(t, "server.yaml", config+"listen: 127.0.0.1:0\ndeployments: {chat: {register: true}}"))
		address := regexp.MustCompile(`picks endpoints for gateways on (\S+)`).FindStringSubmatch(log.String())
		require.Len(t, address, 2, "%s", log)
		for name, c := range clients {
			conn, err := grpc.NewClient(address[1], grpc.WithTransportCredentials(c))
			require.NoError(t, err)
			_, err = healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "liveness"})
			require.Equal(t, name == refused, err != nil, "%q %s: %v", config, name, err)
			require.NoError(t, conn.Close())
		}
	}
}
