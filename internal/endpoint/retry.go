package endpoint

import (
	"errors"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxRetryAfter bounds what RetryAfter says: an estimate that is further away is worth nothing.
const maxRetryAfter = time.Minute

// A LaterError is a status with the time after which there may be room.
type LaterError struct {
	Err   error
	After time.Duration
}

func (e *LaterError) Error() string { return e.Err.Error() }

// GRPCStatus makes the error a status.
func (e *LaterError) GRPCStatus() *status.Status { return status.Convert(e.Err) }

// Unwrap returns the status.
func (e *LaterError) Unwrap() error { return e.Err }

// RetryAfter is the value of the header Retry-After for an error: whole seconds, 1 to 60; "" = asking again is no use.
func RetryAfter(err error) string {
	if c := status.Code(err); c != codes.ResourceExhausted && c != codes.Unavailable {
		return ""
	}
	after := time.Second
	if later, ok := errors.AsType[*LaterError](err); ok {
		after = min(max(after, later.After), maxRetryAfter)
	}
	return strconv.Itoa(int((after + time.Second - 1) / time.Second))
}
