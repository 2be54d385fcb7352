// Package health asks replicas by grpc.health.v1 whether they serve: clients watch, look-aside servers check.
//
// The rule. A replica without the service serves. Of any other, an answer that is not SERVING says that it does not
// serve. A call that fails says nothing of the replica itself.
//
// Source: gRPC's health checking protocol; gRFC A17 (client-side health checking).
package health

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/pause"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// NotServing is the error of a replica that answers that it does not serve: the status that it reports.
type NotServing string

// Error implements error.
func (s NotServing) Error() string { return string(s) }

// serving returns nil or NotServing for an answer.
func serving(a *healthpb.HealthCheckResponse) error {
	if s := a.GetStatus(); s != healthpb.HealthCheckResponse_SERVING {
		return NotServing(s.String())
	}
	return nil
}

// Check asks a replica once about a service, "" = the whole replica. The error is nil if the replica serves, NotServing
// if it answers that it does not, and else the status of the call.
func Check(ctx context.Context, conn grpc.ClientConnInterface, service string) error {
	a, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
	switch {
	case status.Code(err) == codes.Unimplemented:
		return nil
	case err != nil:
		return err
	}
	return serving(a)
}

// A watch that failed is repeated after firstWait. Each further wait is twice as long, up to longestWait.
const firstWait, longestWait = time.Second, 2 * time.Minute

// Watch follows what a replica reports about a service, "" = the whole replica, until ctx ends or the replica turns out
// not to have grpc.health.v1. heard is called with each answer, nil = the replica serves, and with nil if the first call
// gets none. drains reports whether a replica that does not serve only drains: it still serves what it has.
func Watch(ctx context.Context, conn grpc.ClientConnInterface, service string, heard func(err error, drains bool)) {
	known, wait := false, firstWait
	for {
		answered, err := follow(ctx, conn, service, heard)
		gone := status.Code(err) == codes.Unimplemented
		if gone || !known && !answered {
			heard(nil, false)
		}
		if known = true; gone || pause.For(ctx, wait) != nil {
			return
		}
		if wait = min(2*wait, longestWait); answered {
			wait = firstWait
		}
	}
}

// follow makes one call of Watch. It reports whether any answer came, and returns how the call ended.
func follow(
	ctx context.Context, conn grpc.ClientConnInterface, service string, heard func(error, bool),
) (answered bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{Service: service})
	for err == nil {
		var a *healthpb.HealthCheckResponse
		if a, err = s.Recv(); err == nil {
			header, _ := s.Header() // is there, since a message is
			heard(serving(a), len(header[warmpathv1.HeaderDrains]) > 0)
			answered = true
		}
	}
	return answered, err
}
