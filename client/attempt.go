package client

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/channel"
	"github.com/warmpath/warmpath/internal/pause"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// attempts is the attempt loop of one call: it decides whether a failed attempt
// is followed by another, and when. It ends at the first response message.
type attempts struct {
	call   *channel.Call
	cc     *grpc.ClientConn
	method string
	begun  int
	made   int // attempts that failed, but for those that our own picker refused
	broken int // of those, the ones that a replica may have begun to serve

	refused refused

	codec  *codecOnce // of a message that can be encoded only once; nil = it is not needed
	single bool       // the message can be sent only once
}

// sends prepares for the request message to be sent once for each attempt. It returns the options of the attempts.
func (a *attempts) sends(msg any, opts []grpc.CallOption) []grpc.CallOption {
	if _, a.single = msg.(*grpc.PreparedMsg); a.single {
		return opts
	}
	if a.codec = newCodecOnce(msg, opts); a.codec == nil {
		return opts
	}
	return append(slices.Clip(opts), grpc.ForceCodecV2(a.codec))
}

// last frees what only another attempt would need.
func (a *attempts) last() {
	if a.codec != nil {
		a.codec.free()
	}
}

// defaultMaxAttempts holds until a balancer is bound.
const defaultMaxAttempts = 3

// book books a replica for the next attempt, and waits in the queue where all are full. What the queue
// answers is final.
func (a *attempts) book() error {
	a.begun++
	if b := a.call.Queue(); b != nil {
		return a.call.Acquire(b)
	}
	return nil
}

// again returns nil, after the backoff, if the call is to be tried again after err; else
// the error of the call. It does so as soon as the context ends.
func (a *attempts) again(ctx context.Context, err error) error {
	if a.call.Refused() || a.single {
		return a.call.Final(err)
	}
	if ended := ctx.Err(); ended != nil {
		if err == errLate {
			err = status.FromContextError(ended).Err()
		}
		return err
	}
	if err == errLate {
		a.made++
		a.broken++
		a.call.Retried(telemetry.RetryTimeout)
		a.call.Next()
		return nil
	}
	last := a.call.Last()
	f := classify(err, last)
	switch f {
	case final:
		return err
	case full:
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

// limited reports whether the first message of the next attempt is awaited for first_token_timeout.
func (a *attempts) limited() bool {
	return a.call.Handle().Retries().FirstTokenTimeout > 0 && a.broken == 0 && !a.retriedByService()
}

// await runs receive. Each time that first_token_timeout passes it asks move whether the attempt is to be
// given up, and whether there is sense in asking again. For one that is, it cancels the attempt, and returns
// errLate once receive has returned.
func (a *attempts) await(cancel context.CancelFunc, receive func() error, move func() (move, ever bool)) error {
	done := make(chan error, 1)
	go func() { done <- receive() }()
	late := time.NewTicker(a.call.Handle().Retries().FirstTokenTimeout)
	defer late.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-late.C:
		}
		switch moved, ever := move(); {
		case moved:
			cancel()
			<-done // it writes the application's message
			return errLate
		case !ever:
			return <-done
		}
	}
}

// move reports whether the call leaves an attempt whose first message is late: another replica has room, and
// neither the attempts nor the budget are spent. Those do not come back.
func (a *attempts) move() (move, ever bool) {
	if a.broken > 0 || a.made+1 >= a.max() {
		return false, false
	}
	if !a.call.CanMove() {
		return false, true
	}
	if !a.call.Retry() {
		return false, false
	}
	a.call.Late()
	return true, true
}
