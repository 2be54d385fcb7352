package server

import (
	"cmp"
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

	"github.com/warmpath/warmpath/balancer/policy"
)

// A HealthCheck probes the replicas that do not register by grpc.health.v1's Check. Clients are sent a replica that
// does not serve as draining, until it serves again. Where no replica serves, all stay in use: then the fault is
// rather in the check.
type HealthCheck struct {
	// Interval is the time from one round to the next; 100ms to 1h, default 5s.
	Interval policy.Duration `json:"interval,omitempty"`
	// Timeout is how long an answer may take; 10ms to 1m, default 1s.
	Timeout policy.Duration `json:"timeout,omitempty"`
	// Failures are how many checks in a row have to fail; 1 to 100, default 2. NOT_SERVING counts at once.
	Failures int `json:"failures,omitempty"`
	// Service is the name that is checked; empty = the whole server.
	Service string `json:"service,omitempty"`
}

func (c HealthCheck) withDefaults() HealthCheck {
	c.Interval = cmp.Or(c.Interval, policy.Duration(5*time.Second))
	c.Timeout = cmp.Or(c.Timeout, policy.Duration(time.Second))
	c.Failures = cmp.Or(c.Failures, 2)
	return c
}

func (c *HealthCheck) validate() error {
	if c == nil {
		return nil
	}
	if len(c.Service) > maxName {
		return fmt.Errorf("health_check.service: longer than %d bytes", maxName)
	}
	return cmp.Or(
		durationWithin("health_check.interval", c.Interval, 100*time.Millisecond, time.Hour),
		durationWithin("health_check.timeout", c.Timeout, 10*time.Millisecond, time.Minute),
		within("health_check.failures", c.Failures, 1, 100),
	)
}

// maxChecking bounds the checks under way at once.
const maxChecking = 256

// A checker checks replicas in rounds. One goroutine uses it.
type checker struct {
	config   HealthCheck
	log      *slog.Logger
	now      func() time.Time
	conns    *conns
	replicas map[string]*checked // by id
}

// checked is one replica.
type checked struct {
	address  string
	failures int // in a row
	unwell   bool
	symptom  symptom // while unwell
}

// A symptom is the time since when a replica does not serve, and the evidence.
type symptom struct {
	since time.Time
	why   string
}

// maxWhy bounds an error that is kept, in bytes.
const maxWhy = 300

// round checks all members and returns those that do not serve.
func (k *checker) round(ctx context.Context, members []described) map[string]symptom {
	replicas := make(map[string]*checked, len(members))
	var g errgroup.Group
	g.SetLimit(maxChecking)
	for _, m := range members {
		c := k.replicas[m.ID]
		if c == nil || c.address != m.Address {
			c = &checked{address: m.Address}
		}
		replicas[m.ID] = c
		g.Go(func() error {
			k.check(ctx, m.ID, c)
			return nil
		})
	}
	_ = g.Wait()
	k.replicas = replicas
	unwell := make(map[string]symptom)
	for id, c := range k.replicas {
		if c.unwell {
			unwell[id] = c.symptom
		}
	}
	return unwell
}

func (k *checker) check(ctx context.Context, id string, c *checked) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(k.config.Timeout))
	defer cancel()
	a, err := k.ask(ctx, id)
	was := c.unwell
	switch code := status.Code(err); {
	case err == nil && a.GetStatus() == healthpb.HealthCheckResponse_SERVING, code == codes.Unimplemented:
		c.failures, c.unwell = 0, false // a replica without the service answers, which is enough
	case err == nil:
		c.failures, c.unwell = k.config.Failures, true
	case code == codes.Canceled, errors.Is(err, context.Canceled):
		return // the round is over, or the replica has left
	default:
		c.failures++
		c.unwell = c.unwell || c.failures >= k.config.Failures
	}
	if c.unwell {
		c.symptom.why = a.GetStatus().String()
		if err != nil {
			s := status.Convert(err)
			c.symptom.why = strings.ToValidUTF8(fmt.Sprintf("%v: %.*s", s.Code(), maxWhy, s.Message()), "?")
		}
	}
	switch {
	case c.unwell && !was:
		c.symptom.since = k.now()
		k.log.Warn("warmpath: a replica does not serve", "replica", id, "address", c.address, "why", c.symptom.why)
	case was && !c.unwell:
		k.log.Info("warmpath: a replica serves again", "replica", id, "address", c.address)
	}
}

func (k *checker) ask(ctx context.Context, id string) (*healthpb.HealthCheckResponse, error) {
	conn, err := k.conns.connect(ctx, id)
	if err != nil {
		return nil, err
	}
	return healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: k.config.Service})
}

// run checks members until the context ends, and reports after each round those that do not serve.
func (k *checker) run(ctx context.Context, members func() []described, report func(map[string]symptom)) {
	tick := time.NewTicker(time.Duration(k.config.Interval))
	defer tick.Stop()
	for {
		unwell := k.round(ctx, members())
		if ctx.Err() != nil {
			return
		}
		report(unwell)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// checkedUp puts the symptoms of a round into force.
func (d *deployment) checkedUp(unwell map[string]symptom) {
	if d.sources.check(unwell) {
		d.refresh()
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
