package client

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/channel"
	"github.com/warmpath/warmpath/internal/pause"
)

// attempts is the retry loop of one call, which ends at the first response message: each pass books a replica and
// makes an attempt, and the cause of a failure decides whether another pass follows, and when.
type attempts struct {
	call   *channel.Call
	cc     *grpc.ClientConn
	method string

	begun    int // attempts
	failed   int // attempts that count towards max_attempts: all that failed but those that were refused
	sent     int // of those, the ones that a replica may have begun to serve
	rejected int // of those, the ones that a replica rejected
	refused  int // attempts that a full replica refused, which are none
	backoff  time.Duration

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

// timeout is that of the service config for a method, which bounds the whole call, the queue and all attempts; negative = none.
func timeout(cc *grpc.ClientConn, method string) time.Duration {
	if t := cc.GetMethodConfig(method).Timeout; t != nil {
		return *t
	}
	return -1
}

// defaultMaxAttempts holds until a balancer is bound.
const defaultMaxAttempts = 3

// book books a replica for the next attempt, and waits in the queue where all are full, and where the last
// replica refused the call. What the queue answers is final.
func (a *attempts) book(ctx context.Context) error {
	a.begun++
	wait := a.backoff
	a.backoff = 0
	if b := a.call.Queue(); b != nil {
		return a.call.Acquire(b, wait)
	}
	if pause.For(ctx, wait) != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return nil
}

// again returns nil if another attempt follows one that failed with err, once the time for it has come; else the
// error of the call.
func (a *attempts) again(ctx context.Context, err error) error {
	if a.call.Refused() {
		return a.call.Final(err)
	}
	last := a.call.Last()
	why := causeOf(err, last)
	if why == final || a.single {
		return err
	}
	if end := ended(ctx, err); end != nil {
		return end
	}
	switch {
	case why == full:
		a.call.Next()
		return nil
	case why != late && a.retriedElsewhere():
		return err
	case why == refused:
		a.refused++
		a.backoff = a.call.Handle().Retries().Backoff.Wait(a.refused)
	default:
		if err := a.spend(why, last, err); err != nil {
			return err
		}
		if pause.For(ctx, a.call.Handle().Retries().Backoff.Wait(a.failed)) != nil {
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	a.call.Retried(why.retry())
	a.call.Next()
	return nil
}

// spend takes another attempt out of the call's attempts and the channel's budget. The error is the one of the call
// where it is not there.
func (a *attempts) spend(why cause, last channel.Attempt, err error) error {
	a.failed++
	switch why {
	case late:
		a.sent++
		return nil // move has looked at the rest
	case broken:
		a.sent++
		if err := a.call.Broke(last); err != nil {
			return err
		}
	case rejected:
		if a.rejected++; !a.call.CanMove() {
			return err
		}
	}
	if a.failed >= a.max() || a.sent > 1 || a.rejected > 1 {
		return err
	}
	if !a.call.Retry() {
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

// retriedElsewhere reports whether retries are made by another mechanism, to which this loop adds none: a
// retryPolicy of the service config, or an interceptor that runs inside.
func (a *attempts) retriedElsewhere() bool {
	return a.cc.GetMethodConfig(a.method).RetryPolicy != nil || a.call.RetriedInside()
}

// limited reports whether the first message of the next attempt is awaited for first_token_timeout.
func (a *attempts) limited() bool {
	return a.call.Handle().Retries().FirstTokenTimeout > 0 && a.sent == 0 && !a.retriedElsewhere()
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
	if a.sent > 0 || a.failed+1 >= a.max() {
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
