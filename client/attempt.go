package client

import (
	"context"

	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/internal/channel"
	"github.com/warmpath/warmpath/internal/pause"
)

// attempts is the attempt loop of one call: it decides whether a failed attempt
// is followed by another, and when. It ends at the first response message.
type attempts struct {
	call   *channel.Call
	cc     *grpc.ClientConn
	method string
	made   int // attempts that failed, but for those that our own picker refused
	broken int // of those, the ones that a replica may have begun to serve

	refused refused
}

// defaultMaxAttempts holds until a balancer is bound.
const defaultMaxAttempts = 3

// again returns nil, after the backoff, if the call is to be tried again after err; else
// the error of the call. It does so as soon as the context ends.
func (a *attempts) again(ctx context.Context, err error) error {
	if ctx.Err() != nil || a.call.Refused() {
		return err
	}
	last := a.call.Last()
	f := classify(err, last)
	switch f {
	case final:
		return err
	case full:
		if a.call.Handle().Bound() == nil {
			return err
		}
		a.call.Next()
		return nil
	}
	refused, waited := false, false
	if f == rejected { // a stream that is reset may have the same code
		refused, waited = a.refused.again(ctx, a.call.Handle().Retries().Backoff, err, last)
	}
	if refused {
		if !waited || a.retriedByService() {
			return err
		}
	} else if err := a.failed(f, last, err); err != nil {
		return err
	} else if pause.For(ctx, a.call.Handle().Retries().Backoff.Wait(a.made)) != nil {
		return err
	}
	a.call.Retried(f.cause())
	a.call.Next()
	return nil
}

// failed counts an attempt that another replica may make good. The error is the one of the
// call if there may be no other attempt.
func (a *attempts) failed(f failure, last channel.Attempt, err error) error {
	a.made++
	if f == broken {
		a.broken++
	}
	if a.retriedByService() {
		return err
	}
	if f == broken && lost(err) {
		if err := a.call.Broke(last.Replica); err != nil {
			return err
		}
	}
	if a.made >= a.max() || a.broken > 1 {
		return err
	}
	if last.Sent && f != rejected && !a.call.Retry() {
		return channel.OverBudget(err)
	}
	return nil
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
