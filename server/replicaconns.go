package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// replicaTLS is the TLS of the server's own connections to a deployment's replicas. The name in a replica's certificate
// is its server_name, or else its address.
type replicaTLS struct{ *TLS }

func (c replicaTLS) validate() error {
	switch {
	case c.TLS == nil:
		return nil
	case (c.Cert == "") != (c.Key == ""):
		return errors.New("replica_tls.cert: it needs a key, and a key needs it")
	case c.ClientCerts != "":
		return errors.New("replica_tls.client_certs: only in tls")
	}
	return nil
}

func (c replicaTLS) load() (*tls.Config, error) {
	if c.TLS == nil {
		return nil, nil
	}
	pair, replicas, err := c.read()
	if err != nil {
		return nil, fmt.Errorf("replica_tls.%w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: pair, RootCAs: replicas}, nil
}

// replicaConns are the server's own connections to a deployment's replicas: for health checks, load and KV events.
type replicaConns struct {
	// mu guards what follows; nothing is locked under it.
	mu       sync.Mutex
	certs    *certificates        // nil = in plaintext
	replicas map[string]described // by id
	open     map[string]*grpc.ClientConn
}

// secure puts other certificates into force, nil = plaintext, and closes the connections made with those before.
func (c *replicaConns) secure(certs *certificates) {
	c.mu.Lock()
	before := c.certs
	c.certs = certs
	for id := range c.open {
		c.drop(id)
	}
	c.mu.Unlock()
	before.close()
}

// drop closes a connection. Called with mu held.
func (c *replicaConns) drop(id string) {
	_ = c.open[id].Close()
	delete(c.open, id)
}

// setFleet closes the connections to replicas that have left or moved.
func (c *replicaConns) setFleet(order []*member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	replicas := make(map[string]described, len(order))
	for _, m := range order {
		replicas[m.ID] = m.described
	}
	for id := range c.open {
		if now, was := replicas[id], c.replicas[id]; now.Address != was.Address || now.ServerName != was.ServerName {
			c.drop(id)
		}
	}
	c.replicas = replicas
}

// connect returns the connection to a replica; context.Canceled = there is no such replica.
func (c *replicaConns) connect(ctx context.Context, id string) (grpc.ClientConnInterface, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.open[id]; conn != nil {
		return conn, nil
	}
	if c.replicas[id].Address == "" {
		return nil, context.Canceled
	}
	conn, err := dialReplica(c.replicas[id], c.certs)
	if err != nil {
		return nil, err
	}
	if c.open == nil {
		c.open = make(map[string]*grpc.ClientConn)
	}
	c.open[id] = conn
	return conn, ctx.Err()
}

func (c *replicaConns) close() {
	c.setFleet(nil)
	c.secure(nil)
}

// dialReplica returns the server's own connection to a replica. gRPC reconnects it every few seconds.
func dialReplica(m described, certs *certificates) (*grpc.ClientConn, error) {
	secure := insecure.NewCredentials()
	if certs != nil {
		secure = &rotating{credentials.NewTLS(certs.now.Load()), certs}
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(secure),
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

// rotating are TLS credentials of a client. Each handshake uses the certificates in force.
type rotating struct {
	credentials.TransportCredentials
	certs *certificates
}

// ClientHandshake implements [credentials.TransportCredentials].
func (r *rotating) ClientHandshake(
	ctx context.Context, authority string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(r.certs.now.Load()).ClientHandshake(ctx, authority, raw)
}

// Clone implements [credentials.TransportCredentials].
func (r *rotating) Clone() credentials.TransportCredentials {
	return &rotating{r.TransportCredentials.Clone(), r.certs}
}
