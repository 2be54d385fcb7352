package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// ReplicaTLS is for the server's own connections to a deployment's replicas. The files are PEM, and are read again
// when they change. The name in a replica's certificate is its server_name, or else its address.
type ReplicaTLS struct {
	// CA is the file of the authorities that sign the replicas' certificates; empty = the system's.
	CA string `json:"ca,omitempty"`
	// Cert is the file of the certificate that the server presents; empty = none.
	Cert string `json:"cert,omitempty"`
	// Key is the file of its private key.
	Key string `json:"key,omitempty"`
}

func (c *ReplicaTLS) validate() error {
	if c != nil && (c.Cert == "") != (c.Key == "") {
		return errors.New("replica_tls.cert: it needs a key, and a key needs it")
	}
	return nil
}

func (c *ReplicaTLS) paths() []string { return []string{c.CA, c.Cert, c.Key} }

func (c *ReplicaTLS) load() (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if c.Cert != "" {
		if t.Certificates, err = loadPair(c.Cert, c.Key); err != nil {
			return nil, err
		}
	}
	if c.CA != "" {
		if t.RootCAs, err = loadAuthorities(c.CA); err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
	}
	return t, nil
}

// checkFiles reads the files that the deployment names. The error names the field.
func (d *Deployment) checkFiles() error {
	if d.ReplicaTLS == nil {
		return nil
	}
	if _, err := d.ReplicaTLS.load(); err != nil {
		return fmt.Errorf("replica_tls.%w", err)
	}
	return nil
}

// reach is the security of connections to replicas.
type reach struct {
	tls   ReplicaTLS
	certs *certificates // nil = in plaintext
}

// A dialer makes the server's own connections to a deployment's replicas.
type dialer struct {
	log *slog.Logger
	by  atomic.Pointer[reach]
}

// use puts other files into force, for later connections. It is called by one goroutine at a time.
func (x *dialer) use(c *ReplicaTLS) error {
	was := x.by.Load()
	next := new(reach)
	if c != nil {
		if was != nil && was.certs != nil && was.tls == *c {
			return nil
		}
		certs, err := openCertificates(c, x.log)
		if err != nil {
			return fmt.Errorf("replica_tls.%w", err)
		}
		next = &reach{*c, certs}
	}
	x.by.Store(next)
	was.close()
	return nil
}

func (r *reach) close() {
	if r != nil && r.certs != nil {
		r.certs.close()
	}
}

func (x *dialer) close() { x.by.Load().close() }

// dial returns the server's own connection to a replica. gRPC reconnects it every few seconds.
func (x *dialer) dial(m described) (*grpc.ClientConn, error) {
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(&reaching{&x.by}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 500 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second,
			},
			MinConnectTimeout: 5 * time.Second,
		}),
	}
	if m.ServerName != "" {
		opts = append(opts, grpc.WithAuthority(m.ServerName))
	}
	return grpc.NewClient("passthrough:///"+m.Address, opts...)
}

// reaching are credentials that use the files in force at each handshake.
type reaching struct{ by *atomic.Pointer[reach] }

func (r *reaching) now() credentials.TransportCredentials {
	if k := r.by.Load().certs; k != nil {
		return credentials.NewTLS(k.now.Load())
	}
	return insecure.NewCredentials()
}

// ClientHandshake implements [credentials.TransportCredentials].
func (r *reaching) ClientHandshake(
	ctx context.Context, authority string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	return r.now().ClientHandshake(ctx, authority, raw)
}

// ServerHandshake implements [credentials.TransportCredentials].
func (r *reaching) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are a client's")
}

// Info implements [credentials.TransportCredentials].
func (r *reaching) Info() credentials.ProtocolInfo { return r.now().Info() }

// Clone implements [credentials.TransportCredentials].
func (r *reaching) Clone() credentials.TransportCredentials { return &reaching{r.by} }

// OverrideServerName implements the deprecated part of [credentials.TransportCredentials].
func (r *reaching) OverrideServerName(string) error {
	return errors.New("the name is the connection's authority")
}
