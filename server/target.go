package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"

	"github.com/warmpath/warmpath/internal/fleet"
)

// parseTarget returns the resolver of a gRPC target.
func parseTarget(target string) (resolver.Builder, resolver.Target, error) {
	u, err := url.Parse(target)
	if err != nil || u.Scheme == "" {
		return nil, resolver.Target{}, fmt.Errorf("%q is not a target like dns:///host:port", target)
	}
	b := resolver.Get(u.Scheme)
	if b == nil {
		return nil, resolver.Target{}, fmt.Errorf("%q: there is no resolver for %s", target, u.Scheme)
	}
	t := resolver.Target{URL: *u}
	if t.Endpoint() == "" {
		return nil, resolver.Target{}, fmt.Errorf("%q names nothing to resolve; write it like dns:///host:port", target)
	}
	return b, t, nil
}

// resolveInterval is how often a target is resolved anew.
const resolveInterval = 30 * time.Second

// A follower resolves a target again and again, by building its resolver anew: gRPC's DNS resolver resolves again only
// when a connection fails, so it would not notice a fleet that grows.
type follower struct {
	target string
	every  time.Duration
	on     func([]described)
	log    *slog.Logger

	failing bool // as logged last
}

// run follows until the context ends. on is called by one goroutine at a time.
func (f *follower) run(ctx context.Context) {
	tick := time.NewTicker(f.every)
	defer tick.Stop()
	var now listener // of the resolver in force
	for {
		next, err := f.build()
		if err != nil {
			f.failed(err)
		} else {
			now.close()
			now = next
		}
		for due := false; !due; {
			select {
			case <-ctx.Done():
				now.close()
				return
			case <-tick.C:
				due = true
			case r := <-now.box:
				f.take(r)
			}
		}
	}
}

func (f *follower) build() (listener, error) {
	b, target, err := parseTarget(f.target)
	if err != nil {
		return listener{}, err
	}
	l := listener{box: make(chan resolution, 1)}
	l.resolver, err = b.Build(target, l, resolver.BuildOptions{})
	return l, err
}

func (f *follower) take(r resolution) {
	if r.err != nil {
		f.failed(r.err)
		return
	}
	if f.failing {
		f.failing = false
		f.log.Info("warmpath: a target is resolved again", "target", f.target)
	}
	f.on(r.replicas)
}

// failed logs the first failure of several: resolvers retry all the time.
func (f *follower) failed(err error) {
	if f.failing {
		return
	}
	f.failing = true
	f.log.Warn("warmpath: a target cannot be resolved, its last replicas stay", "target", f.target, "error", err)
}

// A resolution is one result of a resolver.
type resolution struct {
	replicas []described
	err      error
}

// listener is the channel of a resolver. It keeps the last result.
type listener struct {
	resolver resolver.Resolver
	box      chan resolution
}

func (l listener) close() {
	if l.resolver != nil {
		l.resolver.Close()
	}
}

// put replaces the last result if it was not read yet. Called by one goroutine at a time.
func (l listener) put(r resolution) {
	select {
	case <-l.box:
	default:
	}
	l.box <- r
}

var errNoAddresses = errors.New("it has no addresses")

// UpdateState implements [resolver.ClientConn].
func (l listener) UpdateState(s resolver.State) error {
	replicas := describe(s)
	if len(replicas) == 0 {
		l.put(resolution{err: errNoAddresses})
		return errNoAddresses // the resolver tries again
	}
	l.put(resolution{replicas: replicas})
	return nil
}

// ReportError implements [resolver.ClientConn].
func (l listener) ReportError(err error) { l.put(resolution{err: err}) }

// NewAddress implements the deprecated half of [resolver.ClientConn].
func (l listener) NewAddress(a []resolver.Address) { _ = l.UpdateState(resolver.State{Addresses: a}) }

// ParseServiceConfig refuses: the policy is the deployment's.
func (l listener) ParseServiceConfig(string) *serviceconfig.ParseResult {
	return &serviceconfig.ParseResult{Err: errors.New("the policy is set in the deployment's config")}
}

// describe returns the replicas of a resolver's state, each id once.
func describe(s resolver.State) []described {
	endpoints := s.Endpoints
	if len(endpoints) == 0 {
		for _, a := range s.Addresses {
			endpoints = append(endpoints, resolver.Endpoint{Addresses: []resolver.Address{a}})
		}
	}
	seen := make(map[string]bool)
	var all []described
	for _, ep := range endpoints {
		if len(ep.Addresses) == 0 {
			continue
		}
		d := described{Attributes: fleet.FromEndpoint(ep)}
		d.ServerName = ep.Addresses[0].ServerName
		if d.ID == "" || seen[d.ID] || strings.ContainsAny(d.ID, "\n\x00") {
			continue
		}
		seen[d.ID] = true
		all = append(all, d)
	}
	return all
}
