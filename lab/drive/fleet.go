package drive

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	grpcresolver "google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/fleet"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
	"github.com/warmpath/warmpath/lab/enginesim/kvpublish"
	"github.com/warmpath/warmpath/resolver"
)

// Fleet is simulated engines on loopback sockets, named r0, r1 and so on.
type Fleet struct {
	// Replicas are the engines as a fleet file describes them.
	Replicas []policy.Attributes

	servers []*grpcserver.Server
}

// StartFleet starts n engines, of which the first ones prefill for the others, which decode; with no prefills none has a
// role. Where the config has a log of KV events, each has one of its own.
func StartFleet(ctx context.Context, n, prefills int, c grpcserver.Config) (*Fleet, error) {
	f := &Fleet{}
	for i := range n {
		lis, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			f.Kill()
			return nil, fmt.Errorf("start an engine: %w", err)
		}
		if c.KVEvents != nil {
			c.KVEvents = kvpublish.NewLog(0)
		}
		role := ""
		if prefills > 0 {
			role = policy.RoleDecode
			if i < prefills {
				role = policy.RolePrefill
			}
			c.Disaggregation = &grpcserver.Disaggregation{Role: grpcserver.Role(role)}
		}
		s, err := grpcserver.Start(lis, c)
		if err != nil {
			f.Kill()
			return nil, fmt.Errorf("start an engine: %w", err)
		}
		f.servers = append(f.servers, s)
		f.Replicas = append(f.Replicas, policy.Attributes{ID: "r" + strconv.Itoa(i), Address: s.Addr().String(), Role: role})
	}
	return f, nil
}

// FleetScheme is the scheme of targets that stand for a fleet, with its Resolver.
const FleetScheme = "fleet"

// Resolver has every target of FleetScheme stand for the engines, with their roles.
func (f *Fleet) Resolver() grpc.DialOption {
	var all grpcresolver.State
	for _, a := range f.Replicas {
		all.Endpoints = append(all.Endpoints, fleet.Endpoint(a))
	}
	b := manual.NewBuilderWithScheme(FleetScheme)
	b.InitialState(all)
	return grpc.WithResolvers(b)
}

// Target is the dial target of the fleet, without the roles of its engines.
func (f *Fleet) Target() string {
	entries := make([]string, len(f.Replicas))
	for i, a := range f.Replicas {
		entries[i] = a.ID + "=" + a.Address
	}
	return resolver.Scheme + ":///" + strings.Join(entries, ",")
}

// Kill ends the engines and the calls on them.
func (f *Fleet) Kill() {
	for _, s := range f.servers {
		s.Kill()
	}
}
