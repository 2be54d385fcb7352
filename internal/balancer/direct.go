package balancer

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/warmpath/warmpath/internal/telemetry"
)

// reachable are the replicas by id, for code that calls them itself. It has a lock of its own: that code may be waited
// for with lb.mu held.
type reachable struct {
	mu      sync.Mutex // guards the fields below; taken under lb.mu, and nothing is called under it
	byID    map[string]*host
	changed chan struct{} // closed by the next change; nil while nothing waits
}

// set replaces the replicas.
func (r *reachable) set(byID map[string]*host) {
	r.mu.Lock()
	r.byID = byID
	r.mu.Unlock()
	r.wake()
}

// wake has those look again that wait for a connection.
func (r *reachable) wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// get returns the replica with an id, nil if there is none, and what the next change closes.
func (r *reachable) get(id string) (h *host, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return r.byID[id], r.changed
}

// direct returns a connection of the replica that is ready, for calls to that replica and no other, past the queue, the
// policy and the interceptors. It waits for one. It does not take lb.mu.
func (b *lb) direct(ctx context.Context, id string) (grpc.ClientConnInterface, error) {
	for {
		h, changed := b.endpoints.reachable.get(id)
		if h != nil && h.connectivity() == connectivity.Ready {
			if res, err := h.send(balancer.PickInfo{}); err == nil {
				if res.Done != nil {
					res.Done(balancer.DoneInfo{})
				}
				// Not closed: gRPC takes it back whenever the connection's state changes.
				conn, _ := res.SubConn.GetOrBuildProducer(directBuilder{})
				return conn.(grpc.ClientConnInterface), nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// directBuilder builds the producer that is the connection itself.
type directBuilder struct{}

// Build implements balancer.ProducerBuilder.
func (directBuilder) Build(conn any) (balancer.Producer, func()) { return conn, func() {} }

const (
	// abortTimeout bounds one Abort: a replica in trouble is not to collect them.
	abortTimeout = 5 * time.Second
	// maxAborts bounds those under way in a channel; more are dropped, since the engine sees
	// the end of the call too, if late.
	maxAborts = 256
)

// aborts are the calls of engines' Abort that are under way.
type aborts struct {
	ctx    context.Context // ends with the balancer
	cancel context.CancelFunc
	all    sync.WaitGroup

	mu     sync.Mutex // guards the fields below; nothing is called under it
	n      int        // under way
	closed bool
}

// begin counts one in, if there is room.
func (a *aborts) begin() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.n == maxAborts {
		return false
	}
	a.n++
	a.all.Add(1)
	return true
}

func (a *aborts) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n--
	a.all.Done()
}

// close ends those under way and waits for them.
func (a *aborts) close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.cancel()
	a.all.Wait()
}

// abort has a replica's engine stop a request that was cancelled: see call.Binding. The message has the id in its field
// 1. That is what a StringValue is on the wire, so no name of an engine's is needed.
func (b *lb) abort(call context.Context, replica, method, id string, ended func(how string)) {
	if !b.aborts.begin() {
		ended(telemetry.AbortDropped)
		return
	}
	go func() {
		defer b.aborts.end()
		// With the metadata of the call: it may carry the right to do this.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(call), abortTimeout)
		defer cancel()
		defer context.AfterFunc(b.aborts.ctx, cancel)()
		conn, err := b.direct(ctx, replica)
		if err == nil {
			err = conn.Invoke(ctx, method, wrapperspb.String(id), &emptypb.Empty{}, grpc.StaticMethod())
		}
		if err != nil {
			ended(telemetry.AbortFailed)
			return
		}
		ended(telemetry.AbortDone)
	}()
}
