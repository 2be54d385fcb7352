package chaos

import (
	"slices"
	"sync"

	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/fleet"
)

// scheme is that of the channels' target.
const scheme = "chaos"

// directory is the resolver of all channels of a run: it gives all of them the same fleet at once.
type directory struct {
	mu       sync.Mutex // guards what follows; channels are updated under it, so that the last update is the last
	replicas []fleet.Replica
	channels []resolver.ClientConn
}

// Scheme implements resolver.Builder.
func (d *directory) Scheme() string { return scheme }

// Build implements resolver.Builder.
func (d *directory) Build(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver,
	error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.channels = append(d.channels, cc)
	d.update(cc)
	return listed{d, cc}, nil
}

// set replaces the fleet.
func (d *directory) set(replicas []fleet.Replica) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.replicas = replicas
	for _, cc := range d.channels {
		d.update(cc)
	}
}

func (d *directory) update(cc resolver.ClientConn) {
	s := resolver.State{Endpoints: make([]resolver.Endpoint, len(d.replicas))}
	for i, r := range d.replicas {
		s.Endpoints[i] = fleet.Endpoint(r)
	}
	_ = cc.UpdateState(s) // an error asks for another resolution, which has the same result
}

// listed is one channel's entry.
type listed struct {
	d  *directory
	cc resolver.ClientConn
}

// ResolveNow implements resolver.Resolver.
func (listed) ResolveNow(resolver.ResolveNowOptions) {}

// Close implements resolver.Resolver.
func (l listed) Close() {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	l.d.channels = slices.DeleteFunc(l.d.channels, func(cc resolver.ClientConn) bool { return cc == l.cc })
}
