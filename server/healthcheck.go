package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/pause"
)

const (
	// probeTimeout is how long the answer to a check or a poll may take.
	probeTimeout = time.Second
	// maxFailures is how many checks in a row may fail before the replica does not serve.
	maxFailures = 2
)

// checkHealth checks the health of the members in rounds until the context ends; interval 0: not at all. What was found
// with another config stays: a replica that does not answer is not put back into service by a reload.
func (d *deployment) checkHealth(ctx context.Context, interval time.Duration) {
	if interval == 0 {
		d.checks.found = nil
		d.update(func(x *sources) bool { return x.check(nil) })
		return
	}
	for range pause.Every(ctx, interval) {
		unwell := d.checks.round(ctx, d.unregistered())
		if ctx.Err() != nil {
			return
		}
		d.update(func(x *sources) bool { return x.check(unwell) })
	}
}

// maxChecking bounds the checks under way at once.
const maxChecking = 256

// checked is one replica.
type checked struct {
	address  string
	failures int     // in a row
	symptom  symptom // while unwell
}

func (c *checked) unwell() bool { return c.failures >= maxFailures }

// A symptom is the time since when a replica does not serve, and the evidence.
type symptom struct {
	since time.Time
	why   string
}

// maxWhy bounds an error that is kept, in bytes.
const maxWhy = 300

// healthChecks are those of a deployment's members. One goroutine at a time uses them.
type healthChecks struct {
	log   *slog.Logger
	now   func() time.Time
	conns *replicaConns
	found map[string]*checked // by id of the replica
}

// round checks members and returns those that do not serve.
func (h *healthChecks) round(ctx context.Context, members []described) map[string]symptom {
	replicas := make(map[string]*checked, len(members))
	var g errgroup.Group
	g.SetLimit(maxChecking)
	for _, m := range members {
		c := h.found[m.ID]
		if c == nil || c.address != m.Address {
			c = &checked{address: m.Address}
		}
		replicas[m.ID] = c
		g.Go(func() error {
			h.check(ctx, m.ID, c)
			return nil
		})
	}
	_ = g.Wait()
	h.found = replicas
	unwell := make(map[string]symptom)
	for id, c := range replicas {
		if c.unwell() {
			unwell[id] = c.symptom
		}
	}
	return unwell
}

// check checks one replica.
func (h *healthChecks) check(ctx context.Context, id string, c *checked) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var a *healthpb.HealthCheckResponse
	conn, err := h.conns.connect(ctx, id)
	if err == nil {
		a, err = healthpb.NewHealthClient(conn).Check(ctx, new(healthpb.HealthCheckRequest))
	}
	was := c.unwell()
	switch code := status.Code(err); {
	case err == nil && a.GetStatus() == healthpb.HealthCheckResponse_SERVING, code == codes.Unimplemented:
		c.failures = 0 // a replica without the service answers, which is enough
	case err == nil:
		c.failures = maxFailures
	case code == codes.Canceled, errors.Is(err, context.Canceled):
		return // the round is over, or the replica has left
	default:
		c.failures++
	}
	if c.unwell() {
		c.symptom.why = a.GetStatus().String()
		if err != nil {
			s := status.Convert(err)
			c.symptom.why = strings.ToValidUTF8(fmt.Sprintf("%v: %.*s", s.Code(), maxWhy, s.Message()), "?")
		}
	}
	switch {
	case c.unwell() && !was:
		c.symptom.since = h.now()
		h.log.Warn("warmpath: a replica does not serve", "replica", id, "address", c.address, "why", c.symptom.why)
	case was && !c.unwell():
		h.log.Info("warmpath: a replica serves again", "replica", id, "address", c.address)
	}
}

// mark takes the replicas that do not serve out of use, unless no other would be left.
func mark(all []described, unwell map[string]symptom) {
	is := func(m *described) bool {
		_, found := unwell[m.ID]
		return found && !m.Draining
	}
	well := len(unwell) == 0
	for i := range all {
		well = well || !all[i].Draining && !is(&all[i])
	}
	if !well {
		return
	}
	for i := range all {
		if is(&all[i]) {
			all[i].Draining, all[i].marked = true, true
		}
	}
}
