package client

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/channel"
)

// attempts is the attempt loop of one call: it decides whether a failed attempt
// is followed by another, and when. It ends at the first response message.
type attempts struct {
	call   *channel.Call
	cc     *grpc.ClientConn
	method string
	made   int // attempts that failed
	sent   int // of those, the ones that a replica may have begun to serve
}

// defaultMaxAttempts holds until a balancer is bound.
const defaultMaxAttempts = 3

// again reports whether the call is to be tried again after err, and waits for
// the backoff. It returns false as soon as the context ends.
func (a *attempts) again(ctx context.Context, err error) bool {
	last := a.call.Last()
	if ctx.Err() != nil || !a.retryable(err, last) {
		return false
	}
	if !last.Full {
		a.made++
		if last.Sent && status.Code(err) == codes.Unavailable {
			a.sent++
		}
		if a.made >= a.max() || a.sent > 1 || a.retriedByService() {
			return false
		}
		if !pause(ctx, backoff(a.made)) {
			return false
		}
	}
	a.call.Next()
	return true
}

// retryable: nothing was received, and another replica may well serve it.
func (a *attempts) retryable(err error, last channel.Attempt) bool {
	s, _ := status.FromError(err)
	switch s.Code() {
	case codes.Unavailable:
		return true
	case codes.ResourceExhausted:
		// gRPC uses the same code for a message over a size limit, which no other
		// replica would take either, and for our own full queue.
		if strings.Contains(s.Message(), "larger than max") {
			return false
		}
		if last.Full { // our own refusal: the call goes to the queue, nothing was tried
			return a.call.Handle().Bound() != nil
		}
		return last.Replica != nil
	}
	return false
}

func (a *attempts) max() int {
	if b := a.call.Handle().Bound(); b != nil && b.MaxAttempts > 0 {
		return b.MaxAttempts
	}
	return defaultMaxAttempts
}

// retriedByService reports whether the service config has a retryPolicy for the
// method: then gRPC has tried as often as its owner wanted.
func (a *attempts) retriedByService() bool {
	return a.cc.GetMethodConfig(a.method).RetryPolicy != nil
}

// backoff returns the wait before the attempt that follows n failed ones: 0, 25,
// 50, 100 … 500 ms. The first goes to another replica at once.
func backoff(n int) time.Duration {
	const first, most = 25 * time.Millisecond, 500 * time.Millisecond
	if n <= 1 {
		return 0
	}
	if n-2 >= 5 {
		return most
	}
	return first << (n - 2)
}

func pause(ctx context.Context, d time.Duration) bool {
	if d == 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
