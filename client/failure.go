package client

import (
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/channel"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// A failure is what an attempt's error means to the call.
type failure uint8

const (
	final    failure = iota // another replica would say the same, or nobody knows
	full                    // our own picker found all full: back to the queue, nothing was tried
	unsent                  // no replica has begun to serve the request
	rejected                // a replica refused the request because it is full
	broken                  // a replica had the request, and said UNAVAILABLE or broke the stream
)

// What gRPC writes into the statuses that it makes itself: nothing else tells them from a
// replica's own. The tests of package tests hold it to that.
const (
	textReset   = "stream terminated by RST_STREAM with error code: "
	textRefused = textReset + "REFUSED_STREAM"
	textDrained = "the stream is rejected because server is draining the connection" // a GOAWAY leaves it out
	textLost    = "error reading from server: "                                      // without a GOAWAY before
)

// classify tells what an attempt that failed before its first message means.
func classify(err error, last channel.Attempt) failure {
	s, _ := status.FromError(err)
	switch {
	case s.Code() == codes.Unavailable && (!last.Sent || s.Message() == textRefused || s.Message() == textDrained):
		return unsent
	case s.Code() == codes.Unavailable, last.Sent && strings.HasPrefix(s.Message(), textReset):
		return broken
	case s.Code() != codes.ResourceExhausted, oversize(s.Message()):
		// gRPC uses RESOURCE_EXHAUSTED for a message over a size limit too, which no other
		// replica would take either.
		return final
	case last.Full:
		return full
	case last.Replica != nil:
		return rejected
	}
	return final // our own queue is full
}

// lost reports whether an attempt's connection broke with the process at its other end, as
// far as can be told: not after a GOAWAY, and not by silence, which is a network's.
func lost(err error) bool {
	s, _ := status.FromError(err)
	rest, ok := strings.CutPrefix(strings.TrimPrefix(s.Message(), `connection error: desc = "`), textLost)
	return ok && !strings.Contains(rest, "timed out") && !strings.Contains(rest, "timeout")
}

// cause is the reason under which another attempt is counted.
func (f failure) cause() string {
	switch f {
	case rejected:
		return telemetry.RetryRejected
	case broken:
		return telemetry.RetryBroken
	}
	return telemetry.RetryUnsent
}
