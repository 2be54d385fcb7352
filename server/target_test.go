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
)

// rounds is a resolver that says another thing every time it is built.
type rounds struct {
	mu     sync.Mutex // guards the counts
	built  int
	closed int
}

func (r *rounds) Scheme() string { return "rounds" }

func (r *rounds) Build(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.built++
	switch r.built {
	case 1:
		_ = cc.UpdateState(resolver.State{Addresses: []resolver.Address{{Addr: "a:1"}}})
	case 2:
		return nil, errors.New("cannot be built")
	case 3:
		cc.ReportError(errors.New("cannot be resolved"))
	default:
		_ = cc.UpdateState(resolver.State{Endpoints: []resolver.Endpoint{{}, {Addresses: []resolver.Address{{Addr: "b:1"}}}}})
	}
	return r, nil
}

func (r *rounds) ResolveNow(resolver.ResolveNowOptions) {}

func (r *rounds) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed++
}

// A target is resolved by a new resolver every round; each but the last is closed, and that at the end.
func TestFollowerBuildsAnew(t *testing.T) {
	r := new(rounds)
	resolver.Register(r)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var told []string
	var log strings.Builder
	f := follower{target: "rounds:///x", every: time.Millisecond, log: slog.New(slog.NewTextHandler(&log, nil)), on: func(all []described) {
		for _, d := range all {
			told = append(told, d.ID)
		}
		if len(told) == 3 {
			cancel()
		}
	}}
	f.run(ctx)
	require.Equal(t, []string{"a:1", "b:1", "b:1"}, told)
	require.Equal(t, r.built-1, r.closed, "one could not be built")
	require.Equal(t, 1, strings.Count(log.String(), "cannot be resolved, its last replicas stay"), "%s", &log)
	require.Equal(t, 1, strings.Count(log.String(), "is resolved again"), "%s", &log)
}
