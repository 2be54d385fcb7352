package replica

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/fleet"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

const (
	// A heartbeat comes when the server wants it, within these bounds: a server that was restarted has the replica
	// again after the longest.
	minHeartbeat, maxHeartbeat = 100 * time.Millisecond, 10 * time.Second
	// After a failure it comes after a time that doubles between these.
	minRetry, maxRetry = 250 * time.Millisecond, 5 * time.Second
	// callTimeout is how long a server may take to answer, leaveTimeout how long deregistering may delay the end.
	callTimeout, leaveTimeout = 5 * time.Second, time.Second
)

// A link keeps the replica registered with one look-aside server. One goroutine uses it.
type link struct {
	replica *Replica
	server  string
	conn    *grpc.ClientConn
	stub    warmpathv1.RoutingServiceClient

	failures int    // since the last success
	fault    string // of the last failure that was logged; "" = registered, or nothing tried yet
	known    bool   // the last heartbeat was accepted
}

func (r *Replica) dial(server string) (*link, error) {
	conn, err := grpc.NewClient(server, append([]grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: minRetry, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxRetry},
		MinConnectTimeout: callTimeout,
	})}, r.cfg.DialOptions...)...)
	if err != nil {
		return nil, fmt.Errorf("replica: Servers: %q: %w", server, err)
	}
	return &link{replica: r, server: server, conn: conn, stub: warmpathv1.NewRoutingServiceClient(conn)}, nil
}

// register keeps the replica registered until end, which deregisters it from every server and waits for the goroutines.
func (r *Replica) register() (end func(), err error) {
	var links []*link
	for _, server := range r.cfg.Servers {
		l, err := r.dial(server)
		if err != nil {
			for _, l := range links {
				_ = l.conn.Close() // nothing was sent on it
			}
			return nil, err
		}
		links = append(links, l)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, l := range links {
		running.Go(func() { l.run(ctx) })
	}
	return func() {
		cancel()
		running.Wait()
	}, nil
}

// run sends heartbeats until ctx ends, and then deregisters.
func (l *link) run(ctx context.Context) {
	defer l.conn.Close()
	for {
		q, changed := l.replica.heartbeat()
		wait := l.beat(ctx, q)
		select {
		case <-l.replica.after(wait):
		case <-changed:
		case <-ctx.Done():
			l.leave()
			return
		}
	}
}

// beat sends a heartbeat and returns when the next one is due.
func (l *link) beat(ctx context.Context, q *warmpathv1.RegisterRequest) time.Duration {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := l.stub.Register(call, q)
	if ctx.Err() != nil {
		return 0
	}
	if err != nil {
		return l.failed(err)
	}
	if !l.known {
		l.replica.cfg.Logger.Info("warmpath: registered with the look-aside server", "server", l.server)
	}
	l.failures, l.fault, l.known = 0, "", true
	wait := time.Duration(answer.GetHeartbeatMs()) * time.Millisecond
	if wait == 0 {
		wait = time.Duration(answer.GetLeaseMs()) * time.Millisecond / 3
	}
	return l.replica.jitter(min(max(wait, minHeartbeat), maxHeartbeat))
}

// failed counts a failed heartbeat, and returns when to try again. Each fault is logged once.
func (l *link) failed(err error) time.Duration {
	l.known = false
	if fault := status.Code(err).String(); fault != l.fault {
		l.fault = fault
		l.replica.cfg.Logger.Warn("warmpath: not registered with the look-aside server; trying again", "server", l.server,
			"error", err)
	}
	wait := min(minRetry<<min(l.failures, 5), maxRetry)
	l.failures++
	return l.replica.jitter(wait)
}

// leave ends the lease. Where that fails the lease ends by itself.
func (l *link) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	farewell, _ := l.replica.heartbeat()
	farewell.Leaving = true
	if _, err := l.stub.Register(ctx, farewell); err != nil && l.known {
		l.replica.cfg.Logger.Warn("warmpath: the look-aside server could not be notified that the replica leaves; its "+
			"lease will end", "server", l.server, "error", err)
	}
}

// heartbeat is everything about the replica; changed is closed when it is not that any more.
func (r *Replica) heartbeat() (q *warmpathv1.RegisterRequest, changed <-chan struct{}) {
	r.mu.Lock()
	own, changed := r.own, r.changed
	r.mu.Unlock()
	load := r.load()
	q = &warmpathv1.RegisterRequest{
		Deployment: r.cfg.Deployment,
		Replica:    fleet.Message(own),
		LeaseMs:    uint32(r.cfg.Lease.Milliseconds()),
		Ongoing:    new(uint32(min(load.Ongoing, math.MaxInt32))),
	}
	q.Replica.KvTokens = uint64(r.cfg.KVTokens)
	if r.cfg.Stats != nil {
		q.Replica.Stats = r.cfg.Stats()
	}
	if load.UncachedTokens >= 0 {
		q.QueuedTokens = new(uint64(load.UncachedTokens))
	}
	return q, changed
}
