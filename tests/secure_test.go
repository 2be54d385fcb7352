package tests

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/server"
	modelserver "github.com/warmpath/warmpath/server/replica"
)

// keyPair writes a certificate and its key, and returns the paths.
func keyPair(t *testing.T, cert *x509.Certificate, key *ecdsa.PrivateKey) (certPath, keyPath string) {
	t.Helper()
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	dir := t.TempDir()
	certPath, keyPath = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{certPath: {Type: "CERTIFICATE", Bytes: cert.Raw}, keyPath: {Type: "PRIVATE KEY", Bytes: raw}} {
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
	}
	return certPath, keyPath
}

// tokenFile is a file with a token.
func tokenFile(t testing.TB, token string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(path, []byte(token), 0o600))
	return path
}

// With TLS, a replica registers with its token and a channel follows the server with its own token. Without a valid
// token a channel gets no replica.
func TestSecureLookasideServer(t *testing.T) {
	ca, caKey := certificate(t, nil, nil, "ca")
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	cert, key := certificate(t, ca, caKey, "warmpath.example")
	certPath, keyPath := keyPair(t, cert, key)
	engines, app := tokenFile(t, "engines-0123456789"), tokenFile(t, "app-0123456789abc")
	c, err := server.ParseConfig(fmt.Appendf(nil, `
load_interval: 20ms
tls: {cert: %s, key: %s}
principals:
- {name: engines, token_file: %s, register: true}
- {name: app, token_file: %s, deployments: [chat]}
deployments:
  chat: {register: true, policy: {kv_aware: {}}, dialects: %s}
`, certPath, keyPath, engines, app, dialects))
	require.NoError(t, err)
	s, err := server.New(c, server.Options{})
	require.NoError(t, err)
	lis := listenLoopback(t)
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	t.Cleanup(func() {
		s.Close()
		require.NoError(t, <-served)
	})
	reached := func(tokenPath string) []grpc.DialOption {
		return []grpc.DialOption{
			grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "warmpath.example"})),
			grpc.WithPerRPCCredentials(client.TokenFile(tokenPath)),
		}
	}
	for i := range 2 {
		own := listenLoopback(t)
		m, err := modelserver.New(modelserver.Config{
			Replica: policy.Attributes{ID: fmt.Sprint("r", i), Address: own.Addr().String()},
			Servers: []string{lis.Addr().String()}, Deployment: "chat", DialOptions: reached(engines), DrainNotice: -1,
		})
		require.NoError(t, err)
		ctx, drain := context.WithCancel(context.Background())
		gs := grpc.NewServer(m.ServerOptions()...)
		testpb.RegisterTestServiceServer(gs, &replica{addr: own.Addr().String()})
		ended := make(chan error, 1)
		go func() { ended <- m.Serve(ctx, gs, own) }()
		t.Cleanup(func() {
			drain()
			require.NoError(t, <-ended)
		})
	}
	cc, err := client.New("warmpath://"+lis.Addr().String()+"/chat", insecureOption(), client.WithServerDialOptions(reached(app)...))
	require.NoError(t, err)
	t.Cleanup(func() { _ = cc.Close() })
	stub := testpb.NewTestServiceClient(cc)
	eventually(t, "both replicas are used", func() bool {
		seen := make(map[string]bool)
		for i := range 2 {
			_, err := stub.UnaryCall(client.WithPin(deadline(t), fmt.Sprint("r", i)), simple("x"))
			seen[fmt.Sprint(err)] = true
		}
		return len(seen) == 1 && seen["<nil>"]
	})
	var d client.Decision
	for range 2 {
		_, err := stub.UnaryCall(client.WithDecision(deadline(t), &d), simple("a prompt that is long enough to have some blocks of its own, and then a few words more"))
		require.NoError(t, err)
	}
	require.Positive(t, d.MatchedTokens, "predicted from its own routes")

	unauthorized, err := client.New("warmpath://"+lis.Addr().String()+"/chat", insecureOption(), client.WithServerDialOptions(reached(tokenFile(t, "nobody-0123456789"))...))
	require.NoError(t, err)
	t.Cleanup(func() { _ = unauthorized.Close() })
	_, err = testpb.NewTestServiceClient(unauthorized).UnaryCall(deadline(t), simple("x"))
	require.ErrorContains(t, err, "the token is not known")
}
