package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// authority signs certificates.
type authority struct {
	t    testing.TB
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t testing.TB) *authority {
	a := &authority{t: t}
	a.cert, a.key = a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a
}

// sign signs with the authority's key, or with the new one if it has none.
func (a *authority) sign(c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	c.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(a.t, err)
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	raw, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	require.NoError(a.t, err)
	cert, err := x509.ParseCertificate(raw)
	require.NoError(a.t, err)
	return cert, key
}

// pair makes the certificate of a client, or of a server on the loopback.
func (a *authority) pair(cn string, uris ...string) (certPEM, keyPEM []byte) {
	a.t.Helper()
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: cn}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, s := range uris {
		u, err := url.Parse(s)
		require.NoError(a.t, err)
		c.URIs = append(c.URIs, u)
	}
	cert, key := a.sign(c)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.t, err)
	return pemOf("CERTIFICATE", cert.Raw), pemOf("PRIVATE KEY", der)
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

func pemOf(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// files is a directory of certificates.
type files struct {
	t   testing.TB
	dir string
}

func (f files) path(name string) string { return filepath.Join(f.dir, name) }

func (f files) write(name string, data []byte) {
	f.t.Helper()
	require.NoError(f.t, os.WriteFile(f.path(name+".new"), data, 0o600))
	require.NoError(f.t, os.Rename(f.path(name+".new"), f.path(name)))
}

func (f files) serverPair(a *authority) {
	cert, key := a.pair("server")
	f.write("cert.pem", cert)
	f.write("key.pem", key)
}

func tlsFiles(t testing.TB, a *authority) files {
	f := files{t, t.TempDir()}
	f.serverPair(a)
	f.write("ca.pem", pemOf("CERTIFICATE", a.cert.Raw))
	return f
}

func (f files) yaml(more string) string {
	return "tls: {cert: " + f.path("cert.pem") + ", key: " + f.path("key.pem") + more + "}\n"
}

func (f files) withClients(more string) string {
	return f.yaml(", ca: " + f.path("ca.pem") + more)
}

// as is a connection with a certificate (nil = none) and a token ("" = none).
func (f *fixture) as(t testing.TB, c credentials.TransportCredentials, token string) *grpc.ClientConn {
	t.Helper()
	opts := []grpc.DialOption{grpc.WithTransportCredentials(c)}
	if token != "" {
		opts = append(opts, grpc.WithPerRPCCredentials(bearer(token)))
	}
	conn, err := grpc.NewClient(f.conn.Target(), opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (f *fixture) with(t testing.TB, token string) warmpathv1.RoutingServiceClient {
	return warmpathv1.NewRoutingServiceClient(f.as(t, insecure.NewCredentials(), token))
}

func (a *authority) client(t testing.TB, pair ...[]byte) credentials.TransportCredentials {
	c := &tls.Config{RootCAs: a.pool()}
	if len(pair) == 2 {
		own, err := tls.X509KeyPair(pair[0], pair[1])
		require.NoError(t, err)
		c.Certificates = []tls.Certificate{own}
	}
	return credentials.NewTLS(c)
}

func ask(t testing.TB, conn *grpc.ClientConn) error {
	t.Helper()
	_, err := warmpathv1.NewRoutingServiceClient(conn).ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{Mode: query})
	return err
}

func TestMutualTLS(t *testing.T) {
	a := newAuthority(t)
	dir := tlsFiles(t, a)
	f := start(t, dir.withClients("")+`
principals:
- {name: byuri, subjects: ["spiffe://example.org/gateway"]}
- {name: byname, subjects: [gateway]}
`+quiet)
	other := newAuthority(t)
	spiffe := func(by *authority) [][]byte {
		cert, key := by.pair("x", "spiffe://example.org/gateway")
		return [][]byte{cert, key}
	}
	named := func(cn string) [][]byte {
		cert, key := a.pair(cn)
		return [][]byte{cert, key}
	}
	for name, tt := range map[string]struct {
		creds credentials.TransportCredentials
		want  codes.Code
	}{
		"by its URI":           {a.client(t, spiffe(a)...), codes.OK},
		"by its common name":   {a.client(t, named("gateway")...), codes.OK},
		"unknown subject":      {a.client(t, named("unknown")...), codes.Unauthenticated},
		"no certificate":       {a.client(t), codes.Unavailable},
		"of another authority": {a.client(t, spiffe(other)...), codes.Unavailable},
		"unknown server":       {other.client(t, spiffe(a)...), codes.Unavailable},
		"plaintext":            {insecure.NewCredentials(), codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			err := ask(t, f.as(t, tt.creds, ""))
			require.Equal(t, tt.want, status.Code(err), "%v", err)
		})
	}
}

// With optional certificates a token does as well.
func TestOptionalCertificates(t *testing.T) {
	a := newAuthority(t)
	dir := tlsFiles(t, a)
	f := start(t, dir.withClients(", client_certs: optional")+`
principals:
- {name: x, subjects: [gateway], token: 0123456789abcdef}
`+quiet)
	require.NoError(t, ask(t, f.as(t, a.client(t), "0123456789abcdef")))
	require.Equal(t, codes.Unauthenticated, status.Code(ask(t, f.as(t, a.client(t), "0123456789abcdeg"))))
	require.Equal(t, codes.Unauthenticated, status.Code(ask(t, f.as(t, a.client(t), ""))))
	cert, key := a.pair("gateway")
	require.NoError(t, ask(t, f.as(t, a.client(t, cert, key), "")))
}

// New connections present a new certificate; an invalid one leaves the old one in force. No connection is cut off.
func TestCertificatesAreReadAgain(t *testing.T) {
	a := newAuthority(t)
	dir := tlsFiles(t, a)
	f := start(t, dir.withClients("")+quiet)
	cert, key := a.pair("client")
	shown := func(conn *grpc.ClientConn) string {
		t.Helper()
		var p peer.Peer
		_, err := warmpathv1.NewRoutingServiceClient(conn).ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{Mode: query}, grpc.Peer(&p))
		require.NoError(t, err)
		return p.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0].SerialNumber.String()
	}
	connected := func() *grpc.ClientConn { return f.as(t, a.client(t, cert, key), "") }
	old := connected()
	first := shown(old)

	dir.write("key.pem", []byte("nonsense"))
	require.Equal(t, first, shown(connected()))

	dir.serverPair(a)
	require.Eventually(t, func() bool { return shown(connected()) != first }, 20*time.Second, 10*time.Millisecond)
	require.Equal(t, first, shown(old))

	// The authority is replaced: a certificate of the old one is refused.
	dir.write("ca.pem", pemOf("CERTIFICATE", newAuthority(t).cert.Raw))
	require.Eventually(t, func() bool {
		return status.Code(ask(t, connected())) == codes.Unavailable
	}, 20*time.Second, 10*time.Millisecond)
	require.NoError(t, ask(t, old))
}

func TestRefusedFiles(t *testing.T) {
	a := newAuthority(t)
	dir := tlsFiles(t, a)
	dir.write("empty", nil)
	dir.write("blank", []byte("has a blank\n"))
	dir.write("short", []byte("0123456789abcdef\nshort\n"))
	dir.write("digest", []byte("sha256:12\n"))
	for _, tt := range []struct{ text, want string }{
		{"tls: {cert: /no/such, key: /no/such}\n", "tls.cert, key: open /no/such"},
		{dir.yaml(", ca: /no/such"), "tls.ca: open /no/such"},
		{dir.yaml(", ca: " + dir.path("empty")), "has no certificate"},
		{"deployments: {chat: {register: true, replica_tls: {ca: " + dir.path("empty") + "}}}\n#", "deployments.chat: replica_tls.ca: " + dir.path("empty") + " has no certificate"},
		{"deployments: {chat: {register: true, replica_tls: {cert: /no/such, key: /no/such}}}\n#", "replica_tls.cert, key: open /no/such"},
		{"principals: [{name: a, token_file: /no/such}]\n", "principals[0].token_file: open /no/such"},
		{"principals: [{name: a, token_file: " + dir.path("empty") + "}]\n", "has no token"},
		{"principals: [{name: a, token_file: " + dir.path("blank") + "}]\n", "without blanks"},
		{"principals: [{name: a, token_file: " + dir.path("short") + "}]\n", "it is not 16 to 4096 characters"},
		{"principals: [{name: a, token_file: " + dir.path("digest") + "}]\n", "what follows sha256: is not 64 hexadecimal digits"},
		{WithTokens(t, "principals: [{name: a, token: 0123456789abcdef}, {name: b, token: 0123456789abcdef}]\n"), "principals[1]: a token is that of a too"},
	} {
		text := tt.text + quiet
		if own, whole := strings.CutSuffix(tt.text, "#"); whole {
			text = own
		}
		c := parse(t, text)
		require.ErrorContains(t, c.CheckFiles(), tt.want)
		_, err := New(c, Options{Logger: discard})
		require.ErrorContains(t, err, tt.want)
	}
	require.NoError(t, parse(t, dir.withClients("")+quiet).CheckFiles())
}

// Files that do not fit are logged, now and then. An empty name is no subject.
func TestBrokenCertificatesAreLogged(t *testing.T) {
	a := newAuthority(t)
	dir := tlsFiles(t, a)
	log := new(logBook)
	k, err := openCertificates(&TLS{Cert: dir.path("cert.pem"), Key: dir.path("key.pem")}, "tls", slog.New(slog.NewTextHandler(log, nil)))
	require.NoError(t, err)
	good := k.now()
	require.Empty(t, log.String())
	dir.write("key.pem", []byte("nonsense"))
	for range 100 {
		require.Same(t, good, k.now())
	}
	require.Equal(t, 1, strings.Count(log.String(), "the certificates were not accepted"))

	require.Equal(t, []string{"x"}, subjects(&x509.Certificate{DNSNames: []string{"", "x"}}))
}
