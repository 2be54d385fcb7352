package server

import (
	"context"
	"net"
	"net/http"
	"sync"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/endpoint"
)

func init() {
	endpoint.Of = func(s any) endpoint.Host { return frontend{services{Server: s.(*Server)}} }
}

// frontend is the server as its page sees it, and the front ends that this module does not link.
type frontend struct{ services }

// ServerOptions implements [endpoint.Host].
func (h frontend) ServerOptions() []grpc.ServerOption { return h.options() }

// Bounded implements [endpoint.Host].
func (h frontend) Bounded(lis net.Listener) net.Listener {
	return newBoundedListener(lis, h.first.MaxConnections, h.log)
}

// Health implements [endpoint.Host].
func (h frontend) Health(names map[string]string) healthpb.HealthServer {
	return &healthService{Server: h.Server, names: names}
}

// Services implements [endpoint.Host].
func (h frontend) Services() grpc.ServiceRegistrar { return h.grpc }

// Unseen implements [endpoint.Host].
func (h frontend) Unseen(reservation string) {
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
func (h frontend) Reading(ctx context.Context, deployment string) endpoint.Reading {
	d, err := h.named(h.principalOf(ctx), deployment)
	if err != nil {
		return unnamed()
	}
	return d.hosted.Load().reading
}

// Admitted implements [page.Host].
func (h frontend) Admitted(r *http.Request) error {
	now, err := h.authenticator.identify(r.Header.Values("Authorization"), verified(r.TLS))
	return replaced(h.principalOf(r.Context()), now, err)
}
