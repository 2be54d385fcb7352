package balancer

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/warmpath/warmpath/internal/telemetry"
)

// reachable are the replicas by id, for code that calls them itself and may be waited for with lb.mu held.
type reachable struct {
	byID    map[string]*host
	changed chan struct{} // closed once another set is in force, or a connection of this one has become ready
}

// reach puts the replicas into force, and has those look again that wait for a connection. Called with lb.mu held.
func (l *endpoints) reach(byID map[string]*host) {
	if old := l.reachable.Swap(&reachable{byID, make(chan struct{})}); old != nil {
		close(old.changed)
	}
}

// direct returns a connection of the replica that is ready, for calls to that replica and no other, past the queue, the
// policy and the interceptors. It waits for one. It does not take lb.mu.
func (b *lb) direct(ctx context.Context, id string) (grpc.ClientConnInterface, error) {
	for {
		now := b.endpoints.reachable.Load()
		if h := now.byID[id]; h != nil && h.connectivity() == connectivity.Ready {
			if conn := connOf(h.state.Load()); conn != nil {
				return conn, nil
			}
		}
		select {
		case <-now.changed:
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
	// maxBesides bounds the calls of our own under way in a channel. More are dropped: an engine sees the end of the call
	// too, if late, and load is asked for again.
	maxBesides = 256
)

// abort has a replica's engine stop a request that was cancelled: see call.Binding. The message has the id in its field
// 1. That is what a StringValue is on the wire, so no name of an engine's is needed.
func (b *lb) abort(call context.Context, replica, method, id string, ended func(how string)) {
	select {
	case b.besides <- struct{}{}:
	default:
		ended(telemetry.CallDropped)
		return
	}
	go func() {
		defer func() { <-b.besides }()
		// With the metadata of the call: it may carry the right to do this.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(call), abortTimeout)
		defer cancel()
		defer context.AfterFunc(b.ctx, cancel)()
		conn, err := b.direct(ctx, replica)
		if err == nil {
			err = conn.Invoke(ctx, method, wrapperspb.String(id), &emptypb.Empty{}, grpc.StaticMethod())
		}
		if err != nil {
			ended(telemetry.CallFailed)
			return
		}
		ended(telemetry.CallDone)
	}()
}
