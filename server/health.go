package server

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
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

// A checker checks replicas, in rounds, each over a connection of its own that stays open.
type checker struct {
	config   HealthCheck
	log      *slog.Logger
	now      func() time.Time
	dial     func(described) (*grpc.ClientConn, error)
	replicas map[string]*checked // by id; used by one goroutine
}

// checked is one replica.
type checked struct {
	described
	conn     *grpc.ClientConn
	failures int // in a row
	unwell   bool
	symptom  symptom // while unwell
}

// A symptom is the time since when a replica does not serve, and the evidence.
type symptom struct {
	since time.Time
	why   string
}

// maxWhy bounds what is kept of an error, in bytes.
const maxWhy = 300

// round checks all replicas and returns those that do not serve.
func (k *checker) round(ctx context.Context, members []described) map[string]symptom {
	k.follow(members)
	var g errgroup.Group
	g.SetLimit(maxChecking)
	for _, c := range k.replicas {
		g.Go(func() error {
			k.check(ctx, c)
			return nil
		})
	}
	_ = g.Wait()
	unwell := make(map[string]symptom)
	for id, c := range k.replicas {
		if c.unwell {
			unwell[id] = c.symptom
		}
	}
	return unwell
}

// follow connects to new replicas, and closes the connections of those that have left or moved.
func (k *checker) follow(members []described) {
	if k.replicas == nil {
		k.replicas = make(map[string]*checked)
	}
	now := make(map[string]bool, len(members))
	for _, m := range members {
		now[m.ID] = true
		if c := k.replicas[m.ID]; c != nil && c.Address == m.Address && c.ServerName == m.ServerName {
			continue
		}
		k.drop(m.ID)
		conn, err := k.dial(m)
		if err != nil {
			k.log.Warn("warmpath: a replica cannot be checked", "replica", m.ID, "error", err)
			continue
		}
		k.replicas[m.ID] = &checked{described: m, conn: conn}
	}
	for id := range k.replicas {
		if !now[id] {
			k.drop(id)
		}
	}
}

func (k *checker) drop(id string) {
	if c := k.replicas[id]; c != nil {
		_ = c.conn.Close()
		delete(k.replicas, id)
	}
}

func (k *checker) close() {
	for id := range k.replicas {
		k.drop(id)
	}
}

func (k *checker) check(ctx context.Context, c *checked) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(k.config.Timeout))
	defer cancel()
	a, err := healthpb.NewHealthClient(c.conn).Check(ctx, &healthpb.HealthCheckRequest{Service: k.config.Service})
	was := c.unwell
	switch code := status.Code(err); {
	case err == nil && a.GetStatus() == healthpb.HealthCheckResponse_SERVING, code == codes.Unimplemented:
		c.failures, c.unwell = 0, false // a replica without the service answers, which is enough
	case err == nil:
		c.failures, c.unwell = k.config.Failures, true
	case code == codes.Canceled:
		return // the round is over
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
		k.log.Warn("warmpath: a replica does not serve", "replica", c.ID, "address", c.Address, "why", c.symptom.why)
	case was && !c.unwell:
		k.log.Info("warmpath: a replica serves again", "replica", c.ID, "address", c.Address)
	}
}

// run checks members until the context ends, and reports after each round those that do not serve.
func (k *checker) run(ctx context.Context, members func() []described, report func(map[string]symptom)) {
	defer k.close()
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

// checks runs the health checks of a deployment; errors are logged.
type checks struct {
	config *HealthCheck
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// adjust runs the checks of a config, anew if it has changed.
func (c *checks) adjust(config *HealthCheck, d *deployment) {
	if c.config == config || c.config != nil && config != nil && *c.config == *config {
		return
	}
	c.stop()
	c.config = config
	if config == nil {
		d.checkedUp(nil)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	k := &checker{config: *config, log: d.log, now: d.now, dial: d.dialer.dial}
	members := func() []described { return d.sources.unregistered(d.members()) }
	c.done.Go(func() { k.run(ctx, members, d.checkedUp) })
}

func (c *checks) stop() {
	if c.cancel != nil {
		c.cancel()
		c.done.Wait()
		c.cancel, c.config = nil, nil
	}
}
