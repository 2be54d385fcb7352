package kubernetes

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/target"
)

// A query is what a target asks for.
type query interface {
	// follow follows the API server's objects until the context ends. It calls publish from its goroutine, after each
	// change: with a fleet, or with nil where the last fleet stays, and with what is wrong.
	follow(ctx context.Context, c *cluster, publish func([]policy.Attributes, error))
}

// last has the last fleet of each target: a channel that leaves idleness has it while the API server is away.
var last sync.Map

// A source is the resolver of one channel.
type source struct {
	target string
	cc     resolver.ClientConn
	own    bool // each replica keeps its authority
	log    *slog.Logger
	cancel context.CancelFunc
	done   chan struct{}

	// Of the goroutine alone.
	known bool
	fleet []policy.Attributes
	wrong string // the error that was reported last; "" = none
}

// run follows a query until the context ends.
func (s *source) run(ctx context.Context, q query, c *cluster) {
	defer close(s.done)
	defer c.client.CloseIdleConnections()
	q.follow(ctx, c, s.publish)
}

func (s *source) publish(fleet []policy.Attributes, err error) {
	if was, ok := last.Load(s.target); ok && fleet == nil && !s.known {
		fleet = was.([]policy.Attributes)
	}
	if fleet != nil && (!s.known || !slices.EqualFunc(fleet, s.fleet, policy.Attributes.Equal)) {
		s.known, s.fleet = true, fleet
		last.Store(s.target, fleet)
		// An error would ask for another resolution, which has the same result.
		_ = s.cc.UpdateState(target.State(fleet, s.own))
	}
	switch was := s.wrong; {
	case err == nil && was != "":
		s.wrong = ""
		s.log.Info("warmpath: Kubernetes is followed again", "target", s.target, "replicas", len(s.fleet))
	case err != nil && err.Error() != was:
		s.wrong = err.Error()
		s.cc.ReportError(err)
		if was == "" {
			s.log.Warn("warmpath: Kubernetes cannot be followed",
				"target", s.target, "replicas", len(s.fleet), "error", err)
		}
	}
}

// ResolveNow does nothing: changes come unasked.
func (*source) ResolveNow(resolver.ResolveNowOptions) {}

// Close returns when no update is under way any more.
func (s *source) Close() {
	s.cancel()
	<-s.done
}
