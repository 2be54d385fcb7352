package replica

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/admission"
	"github.com/warmpath/warmpath/internal/target"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

const (
	// A heartbeat comes when the server wants it, within these bounds: a server that was restarted has the replica
	// again after the longest.
	minHeartbeat, maxHeartbeat = 100 * time.Millisecond, 10 * time.Second
	// retryAfter is the time to the next one after a failure.
	retryAfter = time.Second
	// callTimeout is how long a server may take to answer.
	callTimeout = 5 * time.Second
)

// leaveTimeout is how long deregistering may delay the end. Only tests change it.
var leaveTimeout = time.Second

// A link keeps the replica registered with one look-aside server. One goroutine uses it.
type link struct {
	replica *Replica
	server  string
	conn    *grpc.ClientConn
	stub    warmpathv1.RoutingServiceClient
	last    string // status code of the last heartbeat; "" = there was none
}

func (r *Replica) dial(server string) (*link, error) {
	backoff := target.Reconnect(retryAfter/4, 5*retryAfter)
	conn, err := grpc.NewClient(server, append([]grpc.DialOption{backoff}, r.cfg.DialOptions...)...)
	if err != nil {
		return nil, fmt.Errorf("replica: Servers: %q: %w", server, err)
	}
	return &link{replica: r, server: server, conn: conn, stub: warmpathv1.NewRoutingServiceClient(conn)}, nil
}

// register keeps the replica registered until end, which deregisters it from every server and waits for the goroutines.
func (r *Replica) register() (end func(), err error) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	end = func() {
		cancel()
		running.Wait()
	}
	for _, server := range r.cfg.Servers {
		l, err := r.dial(server)
		if err != nil {
			end()
			return nil, err
		}
		running.Go(func() { l.run(ctx) })
	}
	return end, nil
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
	was, log := l.last, l.replica.cfg.Logger.With("server", l.server)
	if l.last = status.Code(err).String(); err != nil {
		if l.last != was { // each fault is logged once
			log.Warn("warmpath: not registered with the look-aside server; trying again", "error", err)
		}
		return l.replica.jitter(retryAfter)
	}
	if l.last != was {
		log.Info("warmpath: registered with the look-aside server")
	}
	wait := time.Duration(cmp.Or(answer.GetHeartbeatMs(), answer.GetLeaseMs()/3)) * time.Millisecond
	return l.replica.jitter(min(max(wait, minHeartbeat), maxHeartbeat))
}

// leave ends the lease. Where that fails the lease ends by itself.
func (l *link) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	farewell, _ := l.replica.heartbeat()
	farewell.Leaving = true
	if _, err := l.stub.Register(ctx, farewell); err != nil && l.last == codes.OK.String() {
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
		Replica:    admission.Message(own),
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
