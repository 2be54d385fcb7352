package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// selfSigned writes a self-signed certificate, valid for servers and clients, and its key.
func selfSigned(t *testing.T, cn string) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: cn}, DNSNames: []string{"warmpath.test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(k)
	require.NoError(t, err)
	write := func(name, kind string, raw []byte) string {
		return file(t, name, string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw})))
	}
	return write(cn+".pem", "CERTIFICATE", der), write(cn+"-key.pem", "PRIVATE KEY", private)
}

// servingWith runs the server until the test ends, and returns its address and its log.
func servingWith(t *testing.T, args ...string) (address string, log *transcript) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var out transcript
	log = new(transcript)
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, append([]string{"serve"}, args...), io.MultiWriter(&out, log), log) }()
	t.Cleanup(func() {
		cancel()
		require.Equal(t, exitOK, <-ended, "%s", log)
	})
	pattern := regexp.MustCompile(`serves \d+ deployments? on (\S+)`)
	require.Eventually(t, func() bool { return pattern.MatchString(out.String()) }, 20*time.Second, 5*time.Millisecond, "%s", log)
	return pattern.FindStringSubmatch(out.String())[1], log
}

func TestServeAndChooseSecurely(t *testing.T) {
	cert, key := selfSigned(t, "server")
	own, ownKey := selfSigned(t, "team")
	token := file(t, "token", "0123456789abcdef\n")
	at, log := servingWith(t, "--pprof", "--config", file(t, "server.yaml", fmt.Sprintf(`
listen: 127.0.0.1:0
metrics: 127.0.0.1:0
tls: {cert: %s, key: %s, ca: %s, client_certs: optional}
principals:
- {name: team, token_file: %s, subjects: [team]}
deployments: {chat: {policy: {round_robin: {}}, replicas: [{id: a, address: 'h:1'}]}}`, cert, key, own, token)))
	for _, args := range [][]string{
		{"--tls-ca", cert, "--token-file", token},
		{"--tls-ca", cert, "--token-file", token, "--tls-name", "warmpath.test"},
		{"--tls-ca", cert, "--cert", own, "--key", ownKey},
	} {
		code, printed, wrong := command(t, append([]string{"choose", "--server", at}, args...)...)
		require.Zero(t, code, wrong)
		require.Contains(t, printed, "replica     a at h:1")
		code, printed, wrong = command(t, append([]string{"top", "--once", "--json", "--server", at}, args...)...)
		require.Zero(t, code, wrong)
		require.Contains(t, printed, "h:1")
	}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{}, exitFailed, "cannot be reached"},
		{[]string{"--token-file", token}, exitFailed, "cannot be reached"},
		{[]string{"--tls"}, exitFailed, "cannot be reached"},
		{[]string{"--tls-ca", cert}, exitFailed, "answers Unauthenticated: a token is missing"},
		{[]string{"--tls-ca", cert, "--tls-name", "other.test"}, exitFailed, "cannot be reached"},
		{[]string{"--tls-ca", token}, exitUsage, "--tls-ca: " + token + " has no certificate"},
		{[]string{"--tls-ca", "/no/such"}, exitUsage, "--tls-ca: open /no/such"},
		{[]string{"--cert", own}, exitUsage, "--cert, --key: "},
		{[]string{"--token-file", "/no/such"}, exitUsage, "open /no/such"},
		{[]string{"--token-file", file(t, "empty", "\n")}, exitUsage, "is empty"},
	} {
		code, _, wrong := command(t, append([]string{"choose", "--timeout", "10s", "--server", at}, tt.args...)...)
		require.Equal(t, tt.code, code, "%q: %s", tt.args, wrong)
		require.Contains(t, wrong, tt.want)
	}
	code, _, wrong := command(t, "choose", "--server", "example.org:1", "--token-file", token)
	require.Equal(t, exitUsage, code)
	require.Contains(t, wrong, "a token is not sent in plaintext to another host")

	url := regexp.MustCompile(`metrics on (\S+)/metrics`).FindStringSubmatch(log.String())
	require.Len(t, url, 2, "%s", log)
	a, err := http.Get(url[1] + "/debug/pprof/goroutine?debug=1")
	require.NoError(t, err)
	defer a.Body.Close()
	printed, err := io.ReadAll(a.Body)
	require.NoError(t, err)
	require.Contains(t, string(printed), "goroutine profile")
	require.NotContains(t, log.String(), "0123456789abcdef")
}

// --check reads the files that a config names, and --listen overrides every reading of the file.
func TestServeChecksFiles(t *testing.T) {
	missing := file(t, "missing.yaml", "principals: [{name: a, token_file: /no/such}]\ndeployments: {chat: {register: true}}")
	for _, args := range [][]string{{"--check"}, {}} {
		code, _, wrong := command(t, append([]string{"serve", "--config", missing}, args...)...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, wrong, "missing.yaml: principals[0].token_file: open /no/such")
	}
	_, log := servingWith(t, "--listen", "127.0.0.1:0", "--config", file(t, "s.yaml", "listen: 127.0.0.1:1\ndeployments: {chat: {register: true}}"))
	require.Eventually(t, func() bool { return regexp.MustCompile("is in force").MatchString(log.String()) }, 20*time.Second, 5*time.Millisecond)
	require.NotContains(t, log.String(), "read once")
}

// pprof is served only if a flag enables it, and only on the loopback.
func TestServePprof(t *testing.T) {
	text := "listen: 127.0.0.1:0\ndeployments: {chat: {register: true}}\n"
	for metrics, code := range map[string]int{
		"": exitUsage, "metrics: '0.0.0.0:0'\nallow_plaintext: true": exitUsage, "metrics: '[::1]:0'": exitOK,
	} {
		got, _, wrong := command(t, "serve", "--check", "--pprof", "--config", file(t, "s.yaml", text+metrics))
		require.Equal(t, code, got, metrics)
		if code != exitOK {
			require.Contains(t, wrong, "--pprof: metrics: ")
		}
	}
	_, log := servingWith(t, "--config", file(t, "s.yaml", text+"metrics: 127.0.0.1:0"))
	url := regexp.MustCompile(`metrics on (\S+)/metrics`).FindStringSubmatch(log.String())
	require.Len(t, url, 2, "%s", log)
	for path, code := range map[string]int{"/metrics": http.StatusOK, "/debug/pprof/heap": http.StatusNotFound} {
		a, err := http.Get(url[1] + path)
		require.NoError(t, err)
		require.NoError(t, a.Body.Close())
		require.Equal(t, code, a.StatusCode, path)
	}
}
