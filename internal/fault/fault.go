// Package fault reads from the status of a call without a first message what is evidence against its replica.
//
// The rule. UNAVAILABLE, INTERNAL and DATA_LOSS are failures of the replica or of the connection to it:
// resets and lost connections are among them. A deadline and a cancellation are the caller's, and count only
// by the length of the wait. INVALID_ARGUMENT, OUT_OF_RANGE and ALREADY_EXISTS speak of the request, and
// RESOURCE_EXHAUSTED of the load. Every other status may be the fault of either (UNKNOWN of a bad request or of a broken
// handler, UNIMPLEMENTED of a wrong method or of a server that is not a model server): it counts if the other replicas
// do not give it.
package fault

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Of returns the fault of a call that ended with this error.
func Of(err error) policy.Fault { return OfCode(status.Code(err)) }

// OfCode is Of for a status code.
func OfCode(c codes.Code) policy.Fault {
	switch c {
	case codes.Unavailable, codes.Internal, codes.DataLoss:
		return policy.Failed
	case codes.DeadlineExceeded:
		return policy.TimedOut
	case codes.Canceled:
		return policy.GivenUp
	case codes.Unknown, codes.Unimplemented, codes.NotFound, codes.Unauthenticated, codes.PermissionDenied,
		codes.FailedPrecondition, codes.Aborted:
		return policy.Doubtful
	}
	return policy.NoFault
}
