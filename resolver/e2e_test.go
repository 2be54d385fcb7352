package resolver_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/warmpath/warmpath/resolver"
)

// replica is a server on loopback that records the :authority of its calls.
type replica struct {
	address string

	mu          sync.Mutex // guards authorities
	authorities []string
}

func (r *replica) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(r.authorities)))
}

func (r *replica) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.authorities = nil
}

func serve(t *testing.T, host string, creds credentials.TransportCredentials) *replica {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	require.NoError(t, err)
	r := &replica{address: l.Addr().String()}
	s := grpc.NewServer(grpc.Creds(creds), grpc.UnaryInterceptor(
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			md, _ := metadata.FromIncomingContext(ctx)
			r.mu.Lock()
			r.authorities = append(r.authorities, md.Get(":authority")...)
			r.mu.Unlock()
			return next(ctx, req)
		}))
	healthpb.RegisterHealthServer(s, health.NewServer())
	done := make(chan error)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		assert.NoError(t, <-done)
	})
	return r
}

// authority signs a certificate for each replica.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, template(true), template(true), key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &authority{key: key, cert: cert, pool: pool}
}

func template(ca bool) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber:          big.NewInt(time.Now().UnixNano()),
		Subject:               pkix.Name{CommonName: "warmpath test"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  ca,
		BasicConstraintsValid: ca,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
}

// server returns credentials for the one name or IP address.
func (a *authority) server(t *testing.T, name string) credentials.TransportCredentials {
	t.Helper()
	c := template(false)
	if ip := net.ParseIP(name); ip != nil {
		c.IPAddresses = []net.IP{ip}
	} else {
		c.DNSNames = []string{name}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, key.Public(), a.key)
	require.NoError(t, err)
	return credentials.NewServerTLSFromCert(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key})
}

func (a *authority) client(name string) credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{RootCAs: a.pool, ServerName: name})
}

func dial(t *testing.T, target string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	require.NoError(t, resolver.Check(target))
	cc, err := grpc.NewClient(target, append([]grpc.DialOption{
		grpc.WithNoProxy(),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`),
	}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, cc.Close()) })
	return cc
}

func call(t *testing.T, cc *grpc.ClientConn) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var p peer.Peer
	_, err := healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true), grpc.Peer(&p))
	require.NoError(t, err)
	return p.Addr.String()
}

// callAll calls until each of these replicas, and no other, answers.
func callAll(t *testing.T, cc *grpc.ClientConn, replicas ...*replica) {
	t.Helper()
	want := map[string]bool{}
	for _, r := range replicas {
		want[r.address] = true
	}
	require.Eventually(t, func() bool {
		got := map[string]bool{}
		for range 3 * len(replicas) {
			got[call(t, cc)] = true
		}
		return assert.ObjectsAreEqual(want, got)
	}, time.Minute, time.Millisecond)
}

func writeFleet(t *testing.T, path string, names []string, replicas ...*replica) {
	t.Helper()
	text := "replicas:\n"
	for i, r := range replicas {
		text += fmt.Sprintf("- {id: r%d, address: %q", i, r.address)
		if names != nil {
			text += ", server_name: " + names[i]
		}
		text += "}\n"
	}
	require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

func TestStaticEndToEnd(t *testing.T) {
	a := serve(t, "127.0.0.1", insecure.NewCredentials())
	b := serve(t, "127.0.0.1", insecure.NewCredentials())
	target := "warmpath:///" + a.address + ",b=" + b.address
	cc := dial(t, target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	callAll(t, cc, a, b)
	assert.Equal(t, []string{a.address}, a.seen())
	assert.Equal(t, []string{b.address}, b.seen())
}

func TestFileEndToEnd(t *testing.T) {
	a := serve(t, "127.0.0.1", insecure.NewCredentials())
	b := serve(t, "127.0.0.1", insecure.NewCredentials())
	c := serve(t, "127.0.0.1", insecure.NewCredentials())
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	writeFleet(t, path, nil, a, b)
	cc := dial(t, "warmpath-file://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	callAll(t, cc, a, b)
	writeFleet(t, path, []string{"b.example", "c.example:443"}, b, c)
	callAll(t, cc, b, c)
	assert.Equal(t, []string{a.address}, a.seen())
	assert.Equal(t, []string{b.address, "b.example"}, b.seen())
	assert.Equal(t, []string{"c.example:443"}, c.seen())
}

// Every replica has a certificate of its own, and presents it to a client that expects that replica. (All of
// 127.0.0.0/8 is loopback on Linux; elsewhere the second address may have to be added.)
func TestStaticTLS(t *testing.T) {
	ca := newAuthority(t)
	a := serve(t, "127.0.0.1", ca.server(t, "127.0.0.1"))
	b := serve(t, "127.0.0.2", ca.server(t, "127.0.0.2"))
	cc := dial(t, "warmpath:///"+a.address+","+b.address, grpc.WithTransportCredentials(ca.client("")))
	callAll(t, cc, a, b)
	assert.Equal(t, []string{a.address}, a.seen())
	assert.Equal(t, []string{b.address}, b.seen())
}

func TestFileTLS(t *testing.T) {
	ca := newAuthority(t)
	names := []string{"a.example", "b.example"}
	a := serve(t, "127.0.0.1", ca.server(t, names[0]))
	b := serve(t, "127.0.0.1", ca.server(t, names[1]))
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	writeFleet(t, path, names, a, b)
	cc := dial(t, "warmpath-file://"+path, grpc.WithTransportCredentials(ca.client("")))
	callAll(t, cc, a, b)
	assert.Equal(t, []string{names[0]}, a.seen())
	assert.Equal(t, []string{names[1]}, b.seen())
}

// A name in the user's credentials or dial options overrides the replicas' own, in the handshake and in the
// header.
func TestChosenNameTLS(t *testing.T) {
	ca := newAuthority(t)
	a := serve(t, "127.0.0.1", ca.server(t, "llm.example"))
	b := serve(t, "127.0.0.1", ca.server(t, "llm.example"))
	for name, opts := range map[string][]grpc.DialOption{
		"credentials": {grpc.WithTransportCredentials(ca.client("llm.example"))},
		"option":      {grpc.WithTransportCredentials(ca.client("")), grpc.WithAuthority("llm.example")},
	} {
		t.Run(name, func(t *testing.T) {
			a.forget()
			b.forget()
			cc := dial(t, "warmpath:///"+a.address+","+b.address, opts...)
			callAll(t, cc, a, b)
			assert.Equal(t, []string{"llm.example"}, a.seen())
			assert.Equal(t, []string{"llm.example"}, b.seen())
		})
	}
}

// A channel that was idle while the file changed has the new fleet, under the new replicas' own names.
func TestFileIdle(t *testing.T) {
	ca := newAuthority(t)
	names := []string{"a.example", "b.example"}
	a := serve(t, "127.0.0.1", ca.server(t, names[0]))
	b := serve(t, "127.0.0.1", ca.server(t, names[1]))
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	writeFleet(t, path, names[:1], a)
	cc := dial(t, "warmpath-file://"+path, grpc.WithTransportCredentials(ca.client("")), grpc.WithIdleTimeout(50*time.Millisecond))
	callAll(t, cc, a)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for s := cc.GetState(); s != connectivity.Idle; s = cc.GetState() {
		require.True(t, cc.WaitForStateChange(ctx, s))
	}
	writeFleet(t, path, names[1:], b)
	callAll(t, cc, b)
	assert.Equal(t, []string{"b.example"}, b.seen())
}

// A bad target fails the call with an error that names the cause.
func TestBadTargetEndToEnd(t *testing.T) {
	for target, want := range map[string]string{
		"warmpath:///a:1,a:1":          "a:1 is already the address of entry 1",
		"warmpath://server/deployment": "look-aside server",
		"warmpath-file:///no/fleet":    "no such file",
	} {
		cc, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		_, err = healthpb.NewHealthClient(cc).Check(t.Context(), &healthpb.HealthCheckRequest{})
		assert.ErrorContains(t, err, want)
		assert.NoError(t, cc.Close())
	}
}
