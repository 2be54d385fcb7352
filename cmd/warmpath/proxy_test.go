package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
)

// passing runs the proxy until the test ends, and returns its address and its output.
func passing(t *testing.T, args ...string) (address string, written *transcript) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	written = new(transcript)
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, append([]string{"proxy", "--listen", "127.0.0.1:0"}, args...), written, written)
	}()
	t.Cleanup(func() {
		cancel()
		require.Equal(t, exitOK, <-ended, "%s", written)
	})
	pattern := regexp.MustCompile(`warmpath passes calls to \S+ on ([^"\s]+)`)
	require.Eventually(t, func() bool { return pattern.MatchString(written.String()) }, 20*time.Second, 5*time.Millisecond, "%s", written)
	return pattern.FindStringSubmatch(written.String())[1], written
}

// generate calls an engine, and returns the number of the prompt's tokens that were cached.
func generate(t *testing.T, cc *grpc.ClientConn, prompt []uint32) (cached, all uint32) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stream, err := enginepb.NewVllmEngineClient(cc).Generate(ctx, &enginepb.GenerateRequest{
		Input: &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: prompt}},
	})
	for err == nil {
		var a *enginepb.GenerateResponse
		if a, err = stream.Recv(); err == nil {
			cached, all = a.GetComplete().GetCachedTokens(), a.GetComplete().GetPromptTokens()
		}
	}
	require.Equal(t, io.EOF, err, "%v", err)
	return cached, all
}

// Turns of a conversation find their prefix, with the client's policy and with a server's pick. Prometheus has the
// decisions.
func TestProxyRoutesByPrefix(t *testing.T) {
	var addresses []string
	for range 3 {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		s, err := grpcserver.Start(lis, grpcserver.Config{Speed: 100})
		require.NoError(t, err)
		t.Cleanup(s.Kill)
		addresses = append(addresses, lis.Addr().String())
	}
	var replicas []string
	for i, a := range addresses {
		replicas = append(replicas, fmt.Sprintf("{id: r%d, address: %q}", i, a))
	}
	fleet := "replicas: [" + strings.Join(replicas, ", ") + "]}\n"
	server, _ := servingWith(t, "--config", file(t, "server.yaml", "listen: 127.0.0.1:0\ndeployments:\n"+
		"  chat: {policy: {kv_aware: {}}, "+fleet+
		"  asked: {policy: {kv_aware: {}}, mode: central_only, central_deadline: 10s, "+fleet))
	for i, tt := range []struct{ target, reason string }{
		{"warmpath:///" + strings.Join(addresses, ","), "prefix_match"},
		{"warmpath://" + server + "/chat", "prefix_match"},
		{"warmpath://" + server + "/asked", "central"},
	} {
		at, written := passing(t, "--target", tt.target, "--metrics", "127.0.0.1:0")
		cc, err := grpc.NewClient(at, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		for session := range uint32(6) {
			prompt := make([]uint32, 512)
			for j := range prompt {
				prompt[j] = uint32(i)*100_000 + session*10_000 + uint32(j)
			}
			cached, all := generate(t, cc, prompt)
			require.Zero(t, cached)
			require.EqualValues(t, len(prompt), all)
			cached, _ = generate(t, cc, append(prompt, 1, 2, 3))
			require.GreaterOrEqual(t, cached, uint32(496), "%s: session %d", tt.target, session)
		}
		require.NoError(t, cc.Close())
		page := regexp.MustCompile(`metrics on (\S+)`).FindStringSubmatch(written.String())[1]
		a, err := http.Get(page)
		require.NoError(t, err)
		text, err := io.ReadAll(a.Body)
		require.NoError(t, errors.Join(err, a.Body.Close()))
		require.Regexp(t, `warmpath_decisions_total{.*reason="`+tt.reason+`".*} [1-9]`, string(text))
	}
	http.DefaultClient.CloseIdleConnections()
}

// TLS on both sides, each with certificates that the other side requires. The listener's certificate is read again
// when it changes.
func TestProxySecurely(t *testing.T) {
	cert, key := selfSigned(t, "server")
	own, ownKey := selfSigned(t, "team")
	pair, err := tls.LoadX509KeyPair(cert, key)
	require.NoError(t, err)
	pool := func(path string) *x509.CertPool {
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		p := x509.NewCertPool()
		require.True(t, p.AppendCertsFromPEM(raw))
		return p
	}
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool(own),
	})))
	testpb.RegisterTestServiceServer(s, echo{})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = s.Serve(lis) }()
	t.Cleanup(s.Stop)
	at, _ := passing(t, "--target", "warmpath:///"+lis.Addr().String(), "--tls-ca", cert, "--cert", own, "--key", ownKey,
		"--listen-cert", cert, "--listen-key", key, "--listen-client-ca", own)
	call := func(certificate, key string) error {
		c := &tls.Config{RootCAs: pool(cert)}
		if certificate != "" {
			pair, err := tls.LoadX509KeyPair(certificate, key)
			require.NoError(t, err)
			c.Certificates = []tls.Certificate{pair}
		}
		cc, err := grpc.NewClient(at, grpc.WithTransportCredentials(credentials.NewTLS(c)))
		require.NoError(t, err)
		defer func() { require.NoError(t, cc.Close()) }()
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "session_id", "s"), time.Minute)
		defer cancel()
		_, err = testpb.NewTestServiceClient(cc).UnaryCall(ctx, &testpb.SimpleRequest{})
		return err
	}
	require.NoError(t, call(own, ownKey))
	require.Error(t, call("", ""))
	require.Error(t, call(cert, key))
	newCert, newKey := selfSigned(t, "renewed")
	require.NoError(t, os.Rename(newCert, cert))
	require.NoError(t, os.Rename(newKey, key))
	require.NoError(t, call(own, ownKey), "the new certificate is its own authority")
}

func TestProxyMistakes(t *testing.T) {
	token, wrong := file(t, "token", "0123456789abcdef\n"), file(t, "wrong.yaml", "polcy: {}")
	cert, key := selfSigned(t, "server")
	for _, c := range []struct{ args, want []string }{
		{[]string{"--target", "warmpath:///h:1"}, []string{"--listen", "required"}},
		{[]string{"--listen", ":0"}, []string{"--target", "required"}},
		{[]string{"--listen", ":0", "--target", "h:1,h:2"}, []string{"--target", "warmpath:///"}},
		{[]string{"--listen", ":0", "--target", "warmpath:///h"}, []string{"--target", "h"}},
		{[]string{"--listen", ":0", "--target", "warmpath:///h:1", "--config", "/nowhere"}, []string{"--config", "/nowhere"}},
		{[]string{"--listen", ":0", "--target", "warmpath:///h:1", "--config", wrong}, []string{"--config", wrong, "polcy"}},
		{[]string{"--listen", ":0", "--target", "warmpath:///h:1", "--listen-cert", cert}, []string{"--listen-key"}},
		{[]string{"--listen", ":0", "--target", "warmpath:///h:1", "--listen-client-ca", cert}, []string{"--listen-client-ca", "--listen-cert"}},
		{[]string{"--listen", ":0", "--target", "warmpath:///h:1", "--listen-cert", cert, "--listen-key", key, "--listen-client-ca", token}, []string{"has no certificate"}},
		{[]string{"--listen", ":0", "--target", "warmpath:///h:1", "--tls-ca", token}, []string{"--tls-ca", "has no certificate"}},
		{[]string{"--listen", ":0", "--target", "warmpath://h:1/chat", "--tls", "--token-file", token}, []string{"--token-file", "loopback", "--listen-cert"}},
		{[]string{"--listen", "127.0.0.1:0", "--target", "warmpath://h:1/chat", "--token-file", token}, []string{"--token-file", "plaintext"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) { requireMistake(t, append([]string{"proxy"}, c.args...), c.want) })
	}
	code, _, stderr := command(t, "proxy", "--listen", "256.0.0.1:0", "--target", "warmpath:///h:1")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "--listen: ")
}

// A call's span is in the trace of its client, has the decision, and is the parent of the replica's span.
func TestProxyTraces(t *testing.T) {
	var mu sync.Mutex // guards got
	var got, parent string
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got += string(body)
	}))
	defer collector.Close()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, q any, _ *grpc.UnaryServerInfo, do grpc.UnaryHandler) (any, error) {
		parent = strings.Join(metadata.ValueFromIncomingContext(ctx, "traceparent"), ",")
		return do(ctx, q)
	}))
	testpb.RegisterTestServiceServer(s, echo{})
	go func() { _ = s.Serve(lis) }()
	defer s.Stop()
	t.Setenv("OTEL_TRACES_EXPORTER", "otlp")
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	const trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	t.Run("call", func(t *testing.T) { // the spans are exported when it ends
		at, _ := passing(t, "--target", "warmpath:///"+lis.Addr().String())
		cc, err := grpc.NewClient(at, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		ctx := metadata.AppendToOutgoingContext(t.Context(), "session_id", "s", "traceparent", "00-"+trace+"-"+span+"-01")
		_, err = testpb.NewTestServiceClient(cc).UnaryCall(ctx, &testpb.SimpleRequest{})
		require.NoError(t, errors.Join(err, cc.Close()))
	})
	require.Regexp(t, "^00-"+trace+"-[0-9a-f]{16}-01$", parent)
	require.NotContains(t, parent, span)
	mu.Lock()
	defer mu.Unlock()
	for _, text := range []string{"grpc.testing.TestService/UnaryCall", "warmpath.replica", "kv_aware"} {
		require.Contains(t, got, text)
	}
}
