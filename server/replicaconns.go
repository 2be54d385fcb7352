package server

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/warmpath/warmpath/internal/target"
)

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
	defer c.mu.Unlock()
	c.certs = certs
	for id := range c.open {
		c.drop(id)
	}
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

func (c *replicaConns) close() { c.setFleet(nil) }

// dialReplica returns the server's own connection to a replica. gRPC reconnects it every few seconds.
func dialReplica(m described, certs *certificates) (*grpc.ClientConn, error) {
	secure := insecure.NewCredentials()
	if certs != nil {
		secure = &rotating{credentials.NewTLS(certs.now()), certs}
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(secure),
		target.Reconnect(500*time.Millisecond, 5*time.Second),
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
	return credentials.NewTLS(r.certs.now()).ClientHandshake(ctx, authority, raw)
}

// Clone implements [credentials.TransportCredentials].
func (r *rotating) Clone() credentials.TransportCredentials {
	return &rotating{r.TransportCredentials.Clone(), r.certs}
}
