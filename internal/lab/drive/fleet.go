package drive

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/lab/enginesim/grpcserver"
	"github.com/warmpath/warmpath/internal/lab/enginesim/kvpublish"
	"github.com/warmpath/warmpath/resolver"
)

// Fleet is simulated engines on loopback sockets, named r0, r1 and so on.
type Fleet struct {
	servers  []*grpcserver.Server
	prefills int
}

// StartFleet starts n engines alike. Where the config has a log of KV events, each has one of its own.
func StartFleet(ctx context.Context, n int, c grpcserver.Config) (*Fleet, error) {
	return StartDivided(ctx, n, 0, c)
}

// StartDivided starts n engines of which the first ones prefill for the others, which decode; with 0 none has a role.
func StartDivided(ctx context.Context, n, prefills int, c grpcserver.Config) (*Fleet, error) {
	f := &Fleet{prefills: prefills}
	for i := range n {
		lis, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			f.Kill()
			return nil, fmt.Errorf("start an engine: %w", err)
		}
		if c.KVEvents != nil {
			c.KVEvents = kvpublish.NewLog(0)
		}
		switch {
		case i < prefills:
			c.Disaggregation = &grpcserver.Disaggregation{Role: grpcserver.Prefill}
		case prefills > 0:
			c.Disaggregation = &grpcserver.Disaggregation{Role: grpcserver.Decode}
		}
		s, err := grpcserver.Start(lis, c)
		if err != nil {
			f.Kill()
			return nil, fmt.Errorf("start an engine: %w", err)
		}
		f.servers = append(f.servers, s)
	}
	return f, nil
}

// Target is the dial target of the fleet, without the roles of its engines.
func (f *Fleet) Target() string {
	entries := make([]string, len(f.servers))
	for i, a := range f.Replicas() {
		entries[i] = a.ID + "=" + a.Address
	}
	return resolver.Scheme + ":///" + strings.Join(entries, ",")
}

// Replicas are the engines as a fleet file describes them.
func (f *Fleet) Replicas() []policy.Attributes {
	all := make([]policy.Attributes, len(f.servers))
	for i, s := range f.servers {
		all[i] = policy.Attributes{ID: "r" + strconv.Itoa(i), Address: s.Addr().String()}
		switch {
		case i < f.prefills:
			all[i].Role = policy.RolePrefill
		case f.prefills > 0:
			all[i].Role = policy.RoleDecode
		}
	}
	return all
}

// Kill ends the engines and the calls on them.
func (f *Fleet) Kill() {
	for _, s := range f.servers {
		s.Kill()
	}
}
