package nats_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/lab/freeport"
	"github.com/warmpath/warmpath/server"
)

// An authority signs pairs for the loopback.
type authority struct {
	t       testing.TB
	dir     string // has ca.pem, and the pair of the last call of issue
	cert    *x509.Certificate
	private ed25519.PrivateKey
	issued  int64
}

func newAuthority(t testing.TB) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.cert = &x509.Certificate{IsCA: true, KeyUsage: x509.KeyUsageCertSign}
	a.private = a.sign(a.cert, "ca.pem")
	a.issue()
	return a
}

// sign writes a certificate, and returns its key; the first one signs itself.
func (a *authority) sign(c *x509.Certificate, name string) ed25519.PrivateKey {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(a.t, err)
	a.issued++
	c.SerialNumber, c.NotAfter, c.BasicConstraintsValid = big.NewInt(a.issued), time.Now().Add(time.Hour), true
	signer := a.private
	if signer == nil {
		signer = private
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, public, signer)
	require.NoError(a.t, err)
	a.write(name, "CERTIFICATE", der)
	return private
}

// issue writes a new pair.
func (a *authority) issue() {
	private := a.sign(&x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, "cert.pem")
	key, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(a.t, err)
	a.write("key.pem", "PRIVATE KEY", key)
}

func (a *authority) write(name, kind string, der []byte) {
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	require.NoError(a.t, os.WriteFile(filepath.Join(a.dir, name), text, 0o600))
}

// shows is the serial number of the certificate that a server shows to the others.
func shows(t testing.TB, port int) int64 {
	t.Helper()
	conn, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", port))
	require.NoError(t, err)
	defer conn.Close()
	var serial int64
	secured := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(s tls.ConnectionState) error {
		serial = s.PeerCertificates[0].SerialNumber.Int64()
		return nil
	}})
	_ = secured.HandshakeContext(soon(t)) // it asks for a certificate, and there is none
	return serial
}

// With TLS servers find each other, and one with a certificate of another authority, or without any, is kept out. A new
// pair counts for the next connection.
func TestRouteTLS(t *testing.T) {
	ours, theirs, at := newAuthority(t), newAuthority(t), freeport.Find(5)
	secured := func(at []int, i int, dir string) string {
		files := fmt.Sprintf("tls: {ca: %[1]s/ca.pem, cert: %[1]s/cert.pem, key: %[1]s/key.pem}, routes:", dir)
		return strings.Replace(embedded(at, i), "routes:", files, 1)
	}
	a, b := start(t, secured(at[:3], 0, ours.dir)), start(t, secured(at[:3], 1, ours.dir))
	other, plain := start(t, secured(at, 3, theirs.dir)), start(t, embedded(at, 4))
	a.agrees(t, 1)
	b.agrees(t, 1)
	for _, n := range []*node{other, plain} {
		require.Eventually(t, func() bool { return strings.Contains(n.logs.String(), "nats: ") }, time.Minute, 5*time.Millisecond)
		n.agrees(t, 0)
	}
	a.agrees(t, 1)

	require.EqualValues(t, 2, shows(t, at[0]))
	ours.issue()
	require.EqualValues(t, 3, shows(t, at[0]))
	c := start(t, secured(at[:3], 2, ours.dir))
	for _, n := range []*node{a, b, c} {
		n.agrees(t, 2)
	}

	config, err := server.ParseConfig([]byte(secured(at, 0, filepath.Join(ours.dir, "missing"))))
	require.NoError(t, err)
	_, err = server.New(config, server.Options{})
	require.ErrorContains(t, err, "cluster.nats.embed: tls.ca: open ")
	_, err = server.ParseConfig([]byte(strings.Replace(embedded(at, 0), "routes:", "tls: {ca: x}, routes:", 1)))
	require.ErrorContains(t, err, "cluster.nats.embed.tls: want all of ca, cert and key")
}

// A server with another password is kept out, and logs it.
func TestRoutePassword(t *testing.T) {
	at := freeport.Find(3)
	a, b := start(t, embedded(at, 0)), start(t, embedded(at, 1))
	other := start(t, strings.ReplaceAll(embedded(at, 2), "secret", "wrong"))
	a.agrees(t, 1)
	b.agrees(t, 1)
	require.Eventually(t, func() bool {
		return strings.Contains(other.logs.String(), "nats: ") && strings.Contains(a.logs.String(), "nats: ")
	}, time.Minute, 5*time.Millisecond)
	other.agrees(t, 0)
	a.agrees(t, 1)
}

// A gate lets clients of NATS in once it is open.
type gate struct {
	open    atomic.Bool
	refused [2]atomic.Int64 // by user
}

// Check implements [natsserver.Authentication].
func (g *gate) Check(c natsserver.ClientAuthentication) bool {
	if user, err := strconv.Atoi(c.GetOpts().Username); err == nil && !g.open.Load() {
		g.refused[user].Add(1)
	}
	return g.open.Load()
}

// A NATS that refuses the credentials is asked again and again: the servers route alone meanwhile, log it once, and are
// one once it takes them.
func TestRefusedCredentials(t *testing.T) {
	var g gate
	running, err := natsserver.NewServer(&natsserver.Options{
		Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true,
		CustomClientAuthentication: &g,
	})
	require.NoError(t, err)
	go running.Start()
	require.True(t, running.ReadyForConnections(30*time.Second))
	t.Cleanup(func() {
		running.Shutdown()
		running.WaitForShutdown()
	})
	var nodes [len(g.refused)]*node
	for i := range nodes {
		nodes[i] = start(t, fmt.Sprintf("listen: 127.0.0.1:%d\ncluster: {nats: {url: 'nats://%d:secret@%s'}}\n%s",
			1+i, i, running.Addr(), deployments))
	}
	for i, n := range nodes {
		const refused = "Authorization Violation"
		require.Eventually(t, func() bool {
			return g.refused[i].Load() > 5 && strings.Contains(n.logs.String(), refused)
		}, time.Minute, 5*time.Millisecond)
		var causes []string // another one may come in between, if the machine stands still
		for line := range strings.Lines(n.logs.String()) {
			if _, cause, ok := strings.Cut(line, "NATS cannot be reached"); ok {
				causes = append(causes, cause)
			}
		}
		require.Equal(t, slices.Compact(slices.Clone(causes)), causes, "each cause once")
		require.False(t, n.deployment(t).GetCluster().GetConnected())
		require.NotEmpty(t, n.reserve(t))
	}
	g.open.Store(true)
	for _, n := range nodes {
		n.agrees(t, 1)
		require.Eventually(t, func() bool { return strings.Contains(n.logs.String(), "NATS is reached") }, time.Minute, 5*time.Millisecond)
	}
	require.Eventually(t, func() bool { return nodes[0].ongoing(t) == 2 }, time.Minute, 5*time.Millisecond)
}
