package tests

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
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
)

// Every replica has a certificate for its own name only. The :authority of its calls is this name, never the target.
func TestNamesArePerReplica(t *testing.T) {
	ca, key := certificate(t, nil, nil, "ca")
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	var entries string
	want := make(map[string]string)
	rs := make([]*replica, 3)
	for i := range rs {
		name := fmt.Sprintf("replica-%d.example", i)
		cert, own := certificate(t, ca, key, name)
		r := &replica{unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			md, _ := metadata.FromIncomingContext(ctx)
			return &testpb.SimpleResponse{Username: md.Get(":authority")[0]}, nil
		}}
		rs[i] = start(t, r, grpc.Creds(credentials.NewServerTLSFromCert(&tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: own})))
		id := fmt.Sprint("r", i)
		want[id] = name
		entries += fmt.Sprintf("- {id: %s, address: %q, server_name: %s}\n", id, r.addr, name)
	}
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	require.NoError(t, os.WriteFile(path, []byte("replicas:\n"+entries), 0o600))
	for _, how := range []string{"New", "DialOptions"} {
		t.Run(how, func(t *testing.T) {
			creds := grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool}))
			own := client.WithConfig(config(`{"kv_aware":{}}`))
			var cc *grpc.ClientConn
			var err error
			if how == "New" {
				cc, err = client.New("warmpath-file://"+path, own, creds)
			} else {
				cc, err = grpc.NewClient("warmpath-file://"+path, append(client.DialOptions(own), creds, grpc.WithNoProxy())...)
			}
			require.NoError(t, err)
			defer func() { require.NoError(t, cc.Close()) }()
			for id, name := range want {
				eventually(t, "connection to "+id, func() bool {
					reply, err := testpb.NewTestServiceClient(cc).UnaryCall(client.WithPin(deadline(t), id), simple(""))
					return err == nil && reply.Username == name
				})
			}
		})
	}
}

// When a replica's server name changes, it gets a new connection. When another attribute changes, it keeps its
// connection.
func TestServerNameChanges(t *testing.T) {
	r := start(t, &replica{unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		return &testpb.SimpleResponse{Username: md.Get(":authority")[0]}, nil
	}})
	entry := policy.Attributes{ID: "r", Address: r.addr, ServerName: "a.example"}
	fleet, opened := newDirectory("renamed", members(entry)), &conns{}
	cc := dial(t, fleet.Scheme()+":///x", grpc.WithResolvers(fleet), grpc.WithStatsHandler(opened), roundRobin())
	require.Equal(t, "a.example", where(t, deadline(t), cc, ""))
	entry.Weight = 2
	fleet.set(members(entry))
	require.Equal(t, "a.example", where(t, deadline(t), cc, ""))
	require.EqualValues(t, 1, opened.begun.Load())
	entry.ServerName = "b.example"
	fleet.set(members(entry))
	eventually(t, "the new name", func() bool { return where(t, deadline(t), cc, "") == "b.example" })
	require.EqualValues(t, 2, opened.begun.Load())
}

// certificate returns a certificate for a name, signed by ca or self-signed.
func certificate(t testing.TB, ca *x509.Certificate, by *ecdsa.PrivateKey, name string) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	c := &x509.Certificate{
		SerialNumber:          big.NewInt(time.Now().UnixNano()),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		DNSNames:              []string{name},
		BasicConstraintsValid: true,
		IsCA:                  ca == nil,
	}
	if ca == nil {
		ca, by = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, ca, key.Public(), by)
	require.NoError(t, err)
	parsed, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return parsed, key
}
