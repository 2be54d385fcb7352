// Package fault reads from the status of a call without a first message what is evidence against its replica.
//
// The rule. UNAVAILABLE, INTERNAL and DATA_LOSS are failures of the replica or of the connection to it:
// resets and lost connections are among them. A deadline and a cancellation are the caller's, and count only
// by the length of the wait. Every other status is the replica's answer to the request (INVALID_ARGUMENT,
// RESOURCE_EXHAUSTED, UNKNOWN, …), and shows that it is alive.
package fault

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/router/state"
)

// Of returns the fault of a call that ended with this error.
func Of(err error) state.Fault { return OfCode(status.Code(err)) }

// OfCode is Of for a status code.
func OfCode(c codes.Code) state.Fault {
	switch c {
	case codes.Unavailable, codes.Internal, codes.DataLoss:
		return state.Failed
	case codes.DeadlineExceeded:
		return state.TimedOut
	case codes.Canceled:
		return state.GivenUp
	}
	return state.NoFault
}
