package channel

import (
	"context"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// abort tells the engine of an attempt that has ended, if that was because its caller went
// and the engine needs to be told. Called with mu held.
func (c *Call) abort(info balancer.DoneInfo) {
	if !c.abortable || info.Err == nil || !info.BytesSent || c.binding.Abort == nil {
		return
	}
	if code := status.Code(info.Err); code != codes.Canceled && code != codes.DeadlineExceeded {
		return
	}
	if c.Context.Err() == nil && !c.late() {
		return // the status is the replica's own
	}
	id := c.requestID()
	if id == "" {
		return
	}
	b, t, ctx := c.binding, c.handle.Telemetry, c.Context
	b.Abort(ctx, c.booking.Decision.Replica.ID, b.Dialects.Lookup(c.Request.Method).Abort(), id, func(how string) {
		t.Aborted(context.WithoutCancel(ctx), b.Policy, how)
	})
}
