package client

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/balancer/telemetry"
	"github.com/warmpath/warmpath/internal/channel"
)

// slow watches over the first message of an attempt: where it does not come in time, a
// second attempt is made elsewhere, beside the first (hedge_after) or in its place
// (first_token_timeout). There is one second attempt in a call, and it is the one more
// that a request may have after it was sent.
//
// Each attempt is a channel.Call with a booking of its own. Whoever is dropped is
// cancelled, and its goroutine awaited by one that ends it.
type slow struct {
	tries *attempts
	limit channel.Retries
	// first cancels the first attempt.
	first context.CancelFunc
	// into is the application's message, which the first attempt writes. spare is one like it
	// for an attempt beside the first, made before the first began; nil = there can be none.
	into, spare any
	// receive makes the second attempt up to its first message; it ends with the context.
	receive func(ctx context.Context, into any) error
	// mine makes the second attempt the call's, made or yet to be made; false says that the
	// application holds on to the first.
	mine func(second *channel.Call, made bool) bool

	end     context.CancelFunc // cancels the second attempt of a race; nil where there was none
	dropped *channel.Call      // the first attempt, once the second is the call's
}

// verdict says how the wait for the first message ended.
type verdict uint8

const (
	firstCame  verdict = iota // the first attempt ended with err, nil for a message
	secondCame                // the second did
	firstLeft                 // the first was cancelled; the second is booked and not yet made
)

// watches reports whether calls of the method are watched at all. Those whose options say
// where gRPC is to write headers, trailers or the peer are not: two attempts would write there.
func (a *attempts) watches(opts []grpc.CallOption) bool {
	r := a.call.Handle().Retries()
	if r.HedgeAfter <= 0 && r.FirstTokenTimeout <= 0 {
		return false
	}
	for _, o := range opts {
		switch o.(type) {
		case grpc.HeaderCallOption, grpc.TrailerCallOption, grpc.PeerCallOption:
			return false
		}
	}
	return !a.retriedByService()
}

// wait waits for the first message of the first attempt, or for the second attempt's.
// done tells how the first ended. The second Call is returned where it is the call's now.
func (s *slow) wait(done <-chan error) (verdict, *channel.Call, error) {
	waited, due, hedge := time.Duration(0), s.limit.FirstTokenTimeout, false
	if s.limit.HedgeAfter > 0 && s.spare != nil {
		due, hedge = s.limit.HedgeAfter, true
	}
	for due > 0 {
		t := time.NewTimer(due - waited)
		select {
		case err := <-done:
			t.Stop()
			return firstCame, nil, err
		case <-t.C:
		}
		second, ever := s.book(hedge)
		switch {
		case second != nil && hedge:
			return s.race(done, second)
		case second != nil:
			return s.leave(done, second)
		case !ever:
			return firstCame, nil, <-done
		}
		waited = due
		due, hedge = s.next(due, hedge)
	}
	return firstCame, nil, <-done
}

// next returns when a second attempt is tried again to be made that found nobody with
// room: when as much time has passed once more, or at the timeout.
func (s *slow) next(due time.Duration, hedge bool) (time.Duration, bool) {
	timeout := s.limit.FirstTokenTimeout
	if !hedge {
		return due + timeout, false
	}
	due += s.limit.HedgeAfter
	if timeout > 0 && due >= timeout {
		return timeout, false
	}
	return due, true
}

// book books the second attempt, if somebody else has room. ever is false if there may be
// none, now or later.
func (s *slow) book(hedge bool) (second *channel.Call, ever bool) {
	a := s.tries
	if a.broken > 0 || a.made+1 >= a.max() {
		return nil, false
	}
	why, cause := routing.Reason(""), telemetry.RetryTimeout
	if hedge {
		why, cause = routing.ReasonHedge, telemetry.RetryHedge
	}
	second, err := a.call.Beside(why, cause)
	if err != nil {
		return nil, !errors.Is(err, channel.ErrRetryBudget)
	}
	return second, true
}

// made counts the second attempt.
func (s *slow) made() {
	s.tries.made++
	s.tries.broken++
}

// leave cancels the first attempt for good. A message that comes in this moment is not
// the application's any more.
func (s *slow) leave(done <-chan error, second *channel.Call) (verdict, *channel.Call, error) {
	if !s.mine(second, false) {
		second.End()
		return firstCame, nil, <-done
	}
	s.made()
	s.tries.call.Late()
	s.adopt(second)
	<-done // it writes the application's message
	s.forget()
	return firstLeft, second, nil
}

// race makes the second attempt and takes the first message of either.
func (s *slow) race(done <-chan error, second *channel.Call) (verdict, *channel.Call, error) {
	s.made()
	var ctx context.Context
	ctx, s.end = context.WithCancel(second)
	came := make(chan error, 1)
	go func() { came <- s.receive(ctx, s.spare) }()
	select {
	case err := <-done:
		if !s.hopeful(err) {
			s.drop(second, came)
			return firstCame, nil, err
		}
		if later := <-came; s.mine(second, true) {
			s.adopt(second)
			s.forget()
			return secondCame, second, s.take(later)
		}
		second.Forget()
		return firstCame, nil, err
	case err := <-came:
		if err != nil && err != io.EOF || !s.mine(second, true) {
			if last := second.Last(); err != nil && err != io.EOF && classify(err, last) == broken && lost(err) {
				_ = second.Broke(last.Replica) // it counts against the prompt all the same
			}
			second.Drop()
			s.end()
			second.Forget()
			return firstCame, nil, <-done
		}
		s.adopt(second)
		<-done // it writes the application's message
		s.forget()
		return secondCame, second, s.take(err)
	}
}

// drop cancels a second attempt that is under way.
func (s *slow) drop(second *channel.Call, came <-chan error) {
	second.Drop()
	s.end()
	go func() {
		<-came
		second.Forget()
	}()
}

// adopt makes the second attempt the call's and cancels the first.
func (s *slow) adopt(second *channel.Call) {
	s.dropped = s.tries.call
	second.Replace(s.dropped)
	s.first()
	s.tries.call = second
}

// forget ends the first attempt, which has returned.
func (s *slow) forget() { s.dropped.Forget() }

// take gives the application the second attempt's message.
func (s *slow) take(err error) error {
	if err == nil {
		s.tries.call.HedgeWon()
		copyTo(s.into, s.spare)
	}
	return err
}

// hopeful reports whether the second attempt may make good what the first failed with.
func (s *slow) hopeful(err error) bool {
	if err == nil || err == io.EOF {
		return false
	}
	last := s.tries.call.Last()
	f := classify(err, last)
	if f == broken && lost(err) && s.tries.call.Broke(last.Replica) != nil {
		return false // two replicas went under the prompt: the second is next
	}
	return f != final && f != full
}
