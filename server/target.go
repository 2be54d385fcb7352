package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"

	"github.com/warmpath/warmpath/internal/fleet"
	"github.com/warmpath/warmpath/internal/pause"
	"github.com/warmpath/warmpath/internal/target"
)

// parseTarget returns the resolver of a gRPC target.
func parseTarget(text string) (resolver.Builder, resolver.Target, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme == "" {
		return nil, resolver.Target{}, fmt.Errorf("%q is not a target like dns:///host:port", text)
	}
	b := resolver.Get(u.Scheme)
	switch path := target.Packages[u.Scheme]; {
	case b == nil && path != "":
		return nil, resolver.Target{}, fmt.Errorf("%q: %s is not linked: import _ %q", text, u.Scheme, path)
	case b == nil:
		return nil, resolver.Target{}, fmt.Errorf("%q: there is no resolver for %s", text, u.Scheme)
	case path != "" && u.Scheme != target.FileScheme: // a file may be written later
		if err := target.Imported[u.Scheme].Check(*u); err != nil {
			return nil, resolver.Target{}, err
		}
	}
	t := resolver.Target{URL: *u}
	if t.Endpoint() == "" {
		return nil, resolver.Target{}, fmt.Errorf("%q names nothing to resolve; write it like dns:///host:port", text)
	}
	return b, t, nil
}

// resolveInterval is how often a target is resolved again.
const resolveInterval = 30 * time.Second

// A follower follows a target and asks its resolver to resolve again from time to time: gRPC's DNS resolver does so
// only when it is asked, so it would not notice a fleet that grows. It is the channel of the resolver.
type follower struct {
	target string
	every  time.Duration
	on     func([]described) // takes each result
	log    *slog.Logger

	mu      sync.Mutex // guards failing; held while on is called, so that the last result counts
	failing bool       // as logged last
}

// follow follows a target until the context ends; "" = there is none.
func (d *deployment) follow(ctx context.Context, target string) {
	if target == "" {
		return
	}
	f := follower{target: target, every: resolveInterval, log: d.log, on: func(all []described) {
		d.update(func(x *sources) bool { return x.resolve(target, all) })
	}}
	f.run(ctx)
}

// run follows until the context ends.
func (f *follower) run(ctx context.Context) {
	var r resolver.Resolver // nil = it could not be built yet
	for range pause.Every(ctx, f.every) {
		if r != nil {
			r.ResolveNow(resolver.ResolveNowOptions{})
		} else {
			r = f.build()
		}
	}
	if r != nil {
		r.Close()
	}
}

// build returns the target's resolver, or nil if it cannot be built now.
func (f *follower) build() resolver.Resolver {
	var r resolver.Resolver
	b, t, err := parseTarget(f.target)
	if err == nil {
		r, err = b.Build(t, f, resolver.BuildOptions{DisableServiceConfig: true})
	}
	if err != nil {
		f.ReportError(err)
		return nil
	}
	return r
}

var errNoAddresses = errors.New("it has no addresses")

// UpdateState implements [resolver.ClientConn].
func (f *follower) UpdateState(s resolver.State) error {
	replicas := describe(s)
	if len(replicas) == 0 && !target.Complete(s) {
		f.ReportError(errNoAddresses)
		return errNoAddresses // the resolver tries again
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failing {
		f.failing = false
		f.log.Info("warmpath: a target is resolved again", "target", f.target)
	}
	f.on(replicas)
	return nil
}

// ReportError implements [resolver.ClientConn]. It logs the first failure of several: resolvers retry all the time.
func (f *follower) ReportError(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.failing {
		f.failing = true
		f.log.Warn("warmpath: a target cannot be resolved, its last replicas stay", "target", f.target, "error", err)
	}
}

// NewAddress implements the deprecated half of [resolver.ClientConn].
func (f *follower) NewAddress(a []resolver.Address) { _ = f.UpdateState(resolver.State{Addresses: a}) }

// ParseServiceConfig refuses: the policy is the deployment's.
func (f *follower) ParseServiceConfig(string) *serviceconfig.ParseResult {
	return &serviceconfig.ParseResult{Err: errors.New("the policy is set in the deployment's config")}
}

// describe returns the replicas of a resolver's state.
func describe(s resolver.State) []described {
	endpoints := s.Endpoints
	if len(endpoints) == 0 {
		for _, a := range s.Addresses {
			endpoints = append(endpoints, resolver.Endpoint{Addresses: []resolver.Address{a}})
		}
	}
	var all []described
	for _, ep := range endpoints {
		if len(ep.Addresses) == 0 {
			continue
		}
		d := described{Attributes: fleet.FromEndpoint(ep)}
		d.ServerName = ep.Addresses[0].ServerName
		if d.ID != "" && !strings.ContainsAny(d.ID, "\n\x00") {
			all = append(all, d)
		}
	}
	return all
}
