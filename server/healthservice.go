package server

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// maxHealthWatches bounds the health watches; anonymous ones begin only in its first half.
const maxHealthWatches = 10_000

// healthService is grpc.health.v1, which needs no principal. "" and the name of our service mean the whole server; a
// deployment's name is visible only to principals that may use it. Requested names are not stored.
type healthService struct {
	healthpb.UnimplementedHealthServer
	*Server
	names map[string]string // others for deployments, or with "" for the whole server

	watches atomic.Int64 // under way
}

// identity is the principal of a call, anonymous where it cannot be authenticated.
func (s *healthService) identity(ctx context.Context) *principal {
	p, err := s.authenticator.authenticate(ctx)
	if err != nil {
		return s.authenticator.anonymous
	}
	return p
}

func (s *healthService) of(p *principal, service string) healthpb.HealthCheckResponse_ServingStatus {
	whole := service == "" || service == warmpathv1.RoutingService_ServiceDesc.ServiceName
	deployment, other := s.names[service]
	if other {
		whole = deployment == ""
	} else {
		deployment = service
	}
	d := (*s.deployments.Load())[deployment]
	switch {
	case !whole && (d == nil || !other && !p.may(service)):
		return healthpb.HealthCheckResponse_SERVICE_UNKNOWN
	case !s.serving(), !whole && d.catalogue.Load().notServing() != "":
		return healthpb.HealthCheckResponse_NOT_SERVING
	}
	return healthpb.HealthCheckResponse_SERVING
}

// Check implements the service.
func (s *healthService) Check(ctx context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse,
	error) {
	is := s.of(s.identity(ctx), r.GetService())
	if is == healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
		return nil, status.Error(codes.NotFound, "there is no such service, or it is not for this principal")
	}
	return &healthpb.HealthCheckResponse{Status: is}, nil
}

// List implements the service.
func (s *healthService) List(ctx context.Context, _ *healthpb.HealthListRequest) (*healthpb.HealthListResponse, error) {
	p := s.identity(ctx)
	all := make(map[string]*healthpb.HealthCheckResponse)
	add := func(service string) { all[service] = &healthpb.HealthCheckResponse{Status: s.of(p, service)} }
	add("")
	add(warmpathv1.RoutingService_ServiceDesc.ServiceName)
	for name := range s.open(p) {
		add(name)
	}
	return &healthpb.HealthListResponse{Statuses: all}, nil
}

// Watch implements the service. It ends with the server.
func (s *healthService) Watch(
	r *healthpb.HealthCheckRequest, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse],
) error {
	if len(r.GetService()) > maxName {
		return invalid("service: longer than %d bytes", maxName)
	}
	if err := s.enter(stream.Context()); err != nil {
		return err
	}
	defer s.watches.Add(-1)
	sent := healthpb.HealthCheckResponse_ServingStatus(-1)
	for {
		moved := s.authenticator.moved.wait()
		if is := s.of(s.identity(stream.Context()), r.GetService()); is != sent {
			sent = is
			if err := stream.Send(&healthpb.HealthCheckResponse{Status: is}); err != nil {
				return err
			}
		}
		select {
		case <-moved:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-s.draining.Done():
			if sent != healthpb.HealthCheckResponse_SERVING { // else NOT_SERVING is sent first
				return errDraining
			}
		}
	}
}

// enter counts a watch. Its error is a status.
func (s *healthService) enter(ctx context.Context) error {
	most := int64(maxHealthWatches)
	if s.identity(ctx) == s.authenticator.anonymous {
		most /= 2
	}
	if !take(&s.watches, most) {
		return status.Errorf(codes.ResourceExhausted,
			"there are as many health watches as there may be (%d, half of them anonymous)", maxHealthWatches)
	}
	return nil
}
