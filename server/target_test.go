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
)

// rounds is a resolver that has another result every time it is asked. It cannot be built at first.
type rounds struct {
	resolver.ClientConn

	mu     sync.Mutex // guards the counts
	builds int
	asked  int
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
	switch r.asked++; r.asked {
	case 1:
		r.ReportError(errors.New("cannot be resolved"))
	case 2:
		_ = r.UpdateState(resolver.State{Endpoints: []resolver.Endpoint{}}) // of DNS: there is no such name
	case 3:
		_ = r.UpdateState(target.State(nil, true))
	default:
		_ = r.UpdateState(resolver.State{Endpoints: []resolver.Endpoint{{}, {Addresses: []resolver.Address{{Addr: "b:1"}}}}})
	}
}

func (r *rounds) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed++
}

// A target's resolver is built once and asked to resolve again in every round. An empty result counts only if it is from
// a source that lists all replicas.
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
