package tests

import (
	"context"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/stats"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/fleet"
)

// update is what a directory reports to its channel.
type update struct {
	resolver.State
	serviceConfig string // "" for none
}

// state is an update with replicas that carry no attributes.
func state(serviceConfig string, rs ...*replica) update {
	u := update{serviceConfig: serviceConfig}
	for _, r := range rs {
		u.Endpoints = append(u.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: r.addr}}})
	}
	return u
}

func members(rs ...policy.Attributes) update {
	var u update
	for _, r := range rs {
		u.Endpoints = append(u.Endpoints, fleet.Endpoint(r))
	}
	return u
}

// directory is a resolver whose state a test sets. It serves one channel.
type directory struct {
	scheme string

	mu   sync.Mutex // guards the fields below
	cc   resolver.ClientConn
	last update
	err  error // reported until there is an update
	mute bool  // nothing is reported until set or fail is called
}

func newDirectory(scheme string, first update) *directory {
	return &directory{scheme: scheme, last: first}
}

func (d *directory) Scheme() string                        { return d.scheme }
func (d *directory) ResolveNow(resolver.ResolveNowOptions) {}
func (d *directory) Close()                                {}

func (d *directory) Build(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	d.mu.Lock()
	d.cc = cc
	u, err, mute := d.last, d.err, d.mute
	d.mu.Unlock()
	switch {
	case mute:
		return d, nil
	case err != nil:
		cc.ReportError(err)
		return d, nil
	}
	d.set(u)
	return d, nil
}

func (d *directory) set(u update) {
	d.mu.Lock()
	d.last, d.err, d.mute = u, nil, false
	cc := d.cc
	d.mu.Unlock()
	if cc == nil {
		return
	}
	if u.serviceConfig != "" {
		u.ServiceConfig = cc.ParseServiceConfig(u.serviceConfig)
	}
	_ = cc.UpdateState(u.State) // an error asks for another resolution
}

func (d *directory) fail(err error) {
	d.mu.Lock()
	cc := d.cc
	d.mu.Unlock()
	cc.ReportError(err)
}

// conns counts the connections that a channel opened.
type conns struct{ begun atomic.Int64 }

func (c *conns) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (c *conns) HandleRPC(context.Context, stats.RPCStats)                         {}
func (c *conns) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (c *conns) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnBegin); ok {
		c.begun.Add(1)
	}
}
