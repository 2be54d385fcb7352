package server

import (
	"context"
	"sync"

	"google.golang.org/grpc"
)

// conns are the server's own connections to a deployment's replicas: for health checks, load and KV events.
type conns struct {
	dial func(described) (*grpc.ClientConn, error)

	mu       sync.Mutex           // guards the maps; nothing is locked under it
	replicas map[string]described // by id
	open     map[string]*grpc.ClientConn
}

// setFleet closes the connections to replicas that have left or moved.
func (c *conns) setFleet(order []*member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	replicas := make(map[string]described, len(order))
	for _, m := range order {
		replicas[m.ID] = m.described
	}
	for id, conn := range c.open {
		if now, was := replicas[id], c.replicas[id]; now.Address != was.Address || now.ServerName != was.ServerName {
			_ = conn.Close()
			delete(c.open, id)
		}
	}
	c.replicas = replicas
}

// connect returns the connection to a replica; context.Canceled = there is no such replica.
func (c *conns) connect(ctx context.Context, id string) (grpc.ClientConnInterface, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.open[id]; conn != nil {
		return conn, nil
	}
	if c.replicas[id].Address == "" {
		return nil, context.Canceled
	}
	conn, err := c.dial(c.replicas[id])
	if err != nil {
		return nil, err
	}
	if c.open == nil {
		c.open = make(map[string]*grpc.ClientConn)
	}
	c.open[id] = conn
	return conn, ctx.Err()
}

func (c *conns) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.open {
		_ = conn.Close()
	}
	c.open, c.replicas = nil, nil
}
