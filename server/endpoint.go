package server

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/endpoint"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

func init() {
	endpoint.Of = func(s any) endpoint.Host { return endpointHost{routingService{Server: s.(*Server)}} }
}

// endpointHost is the server for front ends that this module does not link.
type endpointHost struct{ routingService }

// ServerOptions implements [endpoint.Host].
func (h endpointHost) ServerOptions() []grpc.ServerOption { return h.options() }

// Bounded implements [endpoint.Host].
func (h endpointHost) Bounded(lis net.Listener) net.Listener {
	return newBoundedListener(lis, h.first.MaxConnections, h.log)
}

// Health implements [endpoint.Host].
func (h endpointHost) Health(names map[string]string) healthpb.HealthServer {
	return &healthService{Server: h.Server, names: names}
}

// Services implements [endpoint.Host].
func (h endpointHost) Services() grpc.ServiceRegistrar { return h.grpc }

// GetStatus implements [endpoint.Host].
func (h endpointHost) GetStatus(ctx context.Context, r *warmpathv1.GetStatusRequest) (*warmpathv1.GetStatusResponse,
	error) {
	return statusService{Server: h.Server}.GetStatus(ctx, r)
}

// Unseen implements [endpoint.Host].
func (h endpointHost) Unseen(reservation string) {
	if d := (*h.deployments.Load())[deploymentOf(reservation)]; d != nil {
		d.picks.leases.counts(reservation, h.now())
	}
}

// unnamed is the reading where no deployment is meant.
var unnamed = sync.OnceValue(func() endpoint.Reading {
	r, _ := endpoint.NewReading(policy.Config{})
	return r
})

// Reading implements [endpoint.Host].
func (h endpointHost) Reading(ctx context.Context, deployment string) endpoint.Reading {
	d, err := h.named(h.principalOf(ctx), deployment)
	if err != nil {
		return unnamed()
	}
	return d.hosted.Load().reading
}
