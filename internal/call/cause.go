package call

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/telemetry"
)

// A cause is why an attempt failed. It alone decides what follows.
type cause uint8

const (
	final    cause = iota // nothing: the status speaks of the request, or the client is at fault
	full                  // the picker found every replica full: the call waits in the queue; nothing was tried
	refused               // the replica refused the request with warmpath's trailer since it is full: back to the queue
	rejected              // the replica answered RESOURCE_EXHAUSTED: one other replica is tried
	unsent                // no replica got the request: another attempt
	broken                // the request was sent, and no answer came, or UNAVAILABLE: one more attempt
	failed                // the replica answered with a status that may be its own fault: one other replica is tried
	late                  // first_token_timeout passed, and the attempt was cancelled: one more attempt
)

// ofRequest reports whether a status speaks of the request: every replica would answer with it. A call whose context
// has ended, where CANCELLED is the caller's, does not come here: the CANCELLED that is left is that of a replica which
// shuts down.
func ofRequest(code codes.Code) bool {
	switch code {
	case codes.InvalidArgument, codes.OutOfRange, codes.FailedPrecondition, codes.Unauthenticated,
		codes.PermissionDenied, codes.AlreadyExists, codes.DeadlineExceeded:
		return true
	}
	return false
}

// causeOf returns why an attempt failed before its first message. It rests on the status code, on whether the request
// was sent, and on whether anything of an answer came, trailers above all.
func causeOf(err error, last *attempt) cause {
	code := status.Code(err)
	switch {
	case err == ErrLate:
		return late
	case last.Full && code == codes.ResourceExhausted:
		return full
	case !last.BytesSent && code == codes.Unavailable:
		return unsent
	case !last.BytesSent, code == codes.DeadlineExceeded:
		return final
	case last.Refused:
		return refused
	case code == codes.Unavailable, !last.BytesReceived: // without an answer the stream was reset
		return broken
	case code == codes.ResourceExhausted:
		if !last.statusAlone { // this client refuses the answer: it is larger than the client takes
			return final
		}
		return rejected
	case ofRequest(code):
		return final
	}
	return failed
}

// interrupts reports whether a stream that ended with err after its first message may go on at another replica.
func interrupts(err error) bool {
	code := status.Code(err)
	return err != nil && code != codes.OK && code != codes.ResourceExhausted && !ofRequest(code)
}

// retries are the reasons under which another attempt is counted.
var retries = [...]string{
	refused: telemetry.RetryRejected, rejected: telemetry.RetryRejected,
	unsent: telemetry.RetryUnsent, broken: telemetry.RetryBroken, failed: telemetry.RetryFailed,
	late: telemetry.RetryTimeout,
}

// deadlineSlack is by how much a replica's timer may be ahead of the client's: it resets the stream at the deadline.
const deadlineSlack = 50 * time.Millisecond

// ended returns the status of a call whose context has ended, or ends in this moment: then the replica resets the
// stream with CANCEL. It returns nil where the context goes on.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	if end, ok := ctx.Deadline(); ok && status.Code(err) == codes.Canceled && time.Until(end) < deadlineSlack {
		return status.FromContextError(context.DeadlineExceeded).Err()
	}
	return nil
}
