package balancer

import (
	"context"
	"maps"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
)

// connections are the replicas' connections that are ready, for code that calls the replicas itself.
type connections struct {
	mu      sync.Mutex // guards what follows; taken under lb.mu, and nothing is called under it but the connection's own
	ready   map[string]readyConn
	changed chan struct{} // closed by the next change; nil while nothing waits
}

// A readyConn is the connection, and the producer that calls go through from the first use on.
type readyConn struct {
	balancer.SubConn
	conn    grpc.ClientConnInterface // nil before
	release func()
}

// set stores which connection of a replica is ready; nil for none.
func (c *connections) set(id string, sc balancer.SubConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, had := c.ready[id]
	if had && old.SubConn == sc {
		return
	}
	if had {
		old.release()
		delete(c.ready, id)
	}
	if sc != nil {
		if c.ready == nil {
			c.ready = make(map[string]readyConn)
		}
		c.ready[id] = readyConn{SubConn: sc, release: func() {}}
	}
	c.wake()
}

// wake has the waiters look again. Called with mu held.
func (c *connections) wake() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// get waits for a ready connection of the replica.
func (c *connections) get(ctx context.Context, id string) (grpc.ClientConnInterface, error) {
	for {
		c.mu.Lock()
		if r, ok := c.ready[id]; ok {
			if r.conn == nil {
				p, release := r.GetOrBuildProducer(directBuilder{})
				r.conn, r.release = p.(grpc.ClientConnInterface), release
				c.ready[id] = r
			}
			c.mu.Unlock()
			return r.conn, nil
		}
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		changed := c.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// rename applies new ids of replicas, all at once: they may have changed places.
func (c *connections) rename(ids map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	moved := make(map[string]readyConn, len(ids))
	for old, id := range ids {
		if r, ok := c.ready[old]; ok {
			moved[id] = r
			delete(c.ready, old)
		}
	}
	maps.Copy(c.ready, moved)
	c.wake()
}

// clear forgets all.
func (c *connections) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.ready {
		r.release()
	}
	c.ready = nil
}

// directBuilder builds the producer that is the connection itself: calls on it go to this replica and no other. gRPC
// takes it back whenever the connection's state changes.
type directBuilder struct{}

// Build implements balancer.ProducerBuilder.
func (directBuilder) Build(conn any) (balancer.Producer, func()) { return conn, func() {} }
