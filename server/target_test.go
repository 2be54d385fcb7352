package server

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/internal/target"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// rounds is a resolver with another result in every call. It cannot be built at first.
type rounds struct {
	resolver.ClientConn

	mu     sync.Mutex // guards the counts
	builds int
	calls  int
	closed int
}

func (r *rounds) Scheme() string { return "rounds" }

func (r *rounds) Build(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.builds++; r.builds == 1 {
		return nil, errors.New("cannot be built")
	}
	r.ClientConn = cc
	return r, cc.UpdateState(resolver.State{Addresses: []resolver.Address{{Addr: "a:1"}}})
}

func (r *rounds) ResolveNow(resolver.ResolveNowOptions) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch r.calls++; r.calls {
	case 1:
		r.ReportError(errors.New("cannot be resolved"))
	case 2:
		_ = r.UpdateState(resolver.State{Endpoints: []resolver.Endpoint{}}) // of DNS: there is no such name
	case 3:
		_ = r.UpdateState(new(target.Channel).State(nil))
	default:
		_ = r.UpdateState(resolver.State{Endpoints: []resolver.Endpoint{{}, {Addresses: []resolver.Address{{Addr: "b:1"}}}}})
	}
}

func (r *rounds) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed++
}

// A target's resolver is built once and called to resolve again in every round. An empty result counts only if it is
// from a source that lists all replicas.
func TestFollowerResolvesAgain(t *testing.T) {
	r := new(rounds)
	resolver.Register(r)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var results [][]string
	var log strings.Builder
	f := follower{target: "rounds:///x", every: time.Millisecond, log: slog.New(slog.NewTextHandler(&log, nil)), on: func(all []described) {
		ids := []string{}
		for _, d := range all {
			ids = append(ids, d.ID)
		}
		if results = append(results, ids); len(results) == 4 {
			cancel()
		}
	}}
	f.run(ctx)
	require.Equal(t, [][]string{{"a:1"}, {}, {"b:1"}, {"b:1"}}, results)
	require.Equal(t, []int{2, 1}, []int{r.builds, r.closed})
	require.Equal(t, 2, strings.Count(log.String(), "cannot be resolved, its last replicas stay"), "%s", &log)
	require.Equal(t, 2, strings.Count(log.String(), "is resolved again"), "%s", &log)
}

// resolved is a resolver that does nothing by itself.
type resolved struct {
	scheme string
	built  chan resolver.BuildOptions
	resolver.ClientConn
}

func (r *resolved) Scheme() string { return r.scheme }

func (r *resolved) Build(_ resolver.Target, cc resolver.ClientConn, o resolver.BuildOptions) (resolver.Resolver, error) {
	r.ClientConn = cc
	r.built <- o
	return r, nil
}

func (*resolved) ResolveNow(resolver.ResolveNowOptions) {}
func (*resolved) Close()                                {}

// The replicas of a target stay until the next one has a result. No resolver has to return a service config.
func TestChangeOfTarget(t *testing.T) {
	one, two := &resolved{scheme: "one", built: make(chan resolver.BuildOptions, 1)}, &resolved{scheme: "two", built: make(chan resolver.BuildOptions, 1)}
	resolver.Register(one)
	resolver.Register(two)
	text := func(source string) string { return "load_interval: 10s\ndeployments: {chat: {" + source + "}}" }
	f := start(t, text("target: 'one:///x'"))
	ids := func() (all []string) {
		for _, m := range f.deploymentMembers("chat") {
			all = append(all, m.ID)
		}
		return all
	}
	require.True(t, (<-one.built).DisableServiceConfig)
	require.NoError(t, one.UpdateState(resolver.State{Addresses: []resolver.Address{{Addr: "a:1"}}}))
	require.NoError(t, f.Update(parse(t, text("target: 'two:///x'"))))
	<-two.built
	two.ReportError(errors.New("not now"))
	require.Equal(t, []string{"a:1"}, ids())
	f.choose(t, new(warmpathv1.ChooseReplicaRequest))
	require.NoError(t, one.UpdateState(resolver.State{Addresses: []resolver.Address{{Addr: "c:1"}}}))
	require.Equal(t, []string{"a:1"}, ids(), "what comes of the target before is late")
	require.NoError(t, two.UpdateState(resolver.State{Addresses: []resolver.Address{{Addr: "b:1"}}}))
	require.Equal(t, []string{"b:1"}, ids())
	require.NoError(t, f.Update(parse(t, text("register: true"))))
	require.Empty(t, ids())
}
