package balancer

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/warmpath/warmpath/internal/telemetry"
)

const (
	// abortTimeout bounds one Abort: a replica in trouble is not to collect them.
	abortTimeout = 5 * time.Second
	// maxAborts bounds those under way in a channel; more are dropped, since the engine sees
	// the end of the call too, if late.
	maxAborts = 256
)

// aborts are the calls of engines' Abort that are under way. They go over the replica's own
// connection, past queue, policy and interceptors. The channel's handle may keep it longer
// than the balancer lives, so close lets go of the connections.
type aborts struct {
	// mu guards the fields below; nothing is called under it. It is taken under a call's.
	mu          sync.Mutex
	connections *connections // nil once closed
	ctx         context.Context
	cancel      context.CancelFunc // nil before the first
	n           int
	all         sync.WaitGroup
}

// begin counts one in and returns the connections and the context that ends with the
// balancer, or nil.
func (a *aborts) begin() (*connections, context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.connections == nil || a.n == maxAborts {
		return nil, nil
	}
	if a.cancel == nil {
		a.ctx, a.cancel = context.WithCancel(context.Background())
	}
	a.n++
	a.all.Add(1)
	return a.connections, a.ctx
}

func (a *aborts) end() {
	a.mu.Lock()
	a.n--
	a.mu.Unlock()
	a.all.Done()
}

// close ends those under way and waits for them.
func (a *aborts) close() {
	a.mu.Lock()
	a.connections = nil
	cancel := a.cancel
	a.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	a.all.Wait()
}

// abort has a replica's engine stop a request that was cancelled: see call.Binding.
func (a *aborts) abort(call context.Context, replica, method, id string, ended func(how string)) {
	conns, ends := a.begin()
	if conns == nil {
		ended(telemetry.AbortDropped)
		return
	}
	go func() {
		defer a.end()
		// With the metadata of the call: it may carry the right to do this.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(call), abortTimeout)
		defer cancel()
		defer context.AfterFunc(ends, cancel)()
		how := telemetry.AbortDone
		if conns.invokeAbort(ctx, replica, method, id) != nil {
			how = telemetry.AbortFailed
		}
		ended(how)
	}()
}

// invokeAbort calls the method with a message whose field 1 is the id. That is what a
// StringValue is on the wire, so no name of an engine's is needed.
func (c *connections) invokeAbort(ctx context.Context, replica, method, id string) error {
	conn, err := c.get(ctx, replica)
	if err != nil {
		return err
	}
	return conn.Invoke(ctx, method, wrapperspb.String(id), &emptypb.Empty{}, grpc.StaticMethod())
}
