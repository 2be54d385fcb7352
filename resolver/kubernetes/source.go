package kubernetes

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/target"
)

// A query is what a target asks for.
type query interface {
	// begin begins to follow what the query needs, and returns how it is read.
	begin(f *follower) (read func(now time.Time) reading)
}

// A reading is what the API server's objects hold together.
type reading struct {
	fleet []policy.Attributes // nil = the last one stays
	until time.Time           // when it is to be read again; zero = after a change
	wrong []string            // what pods declare and is ignored
	err   error
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
	f := &follower{cluster: c, ctx: ctx, wake: make(chan struct{}, 1)}
	defer f.running.Wait()
	read, again, ignored := q.begin(f), time.NewTimer(0), complaints{}
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		case <-again.C:
		}
		known, err := f.state()
		if !known {
			if err != nil {
				s.publish(nil, err)
			}
			continue
		}
		now := time.Now()
		r := read(now)
		ignored.log(s.log, r.wrong)
		if !r.until.IsZero() {
			again.Reset(r.until.Sub(now))
		}
		s.publish(r.fleet, cmp.Or(err, r.err))
	}
}

// publish takes a fleet, or nil where the last one stays, and what is wrong.
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
