package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/loadpoll"
	"github.com/warmpath/warmpath/internal/router/load"
)

func checkLoadPoll(p *policy.LoadPoll) error {
	if p == nil {
		return nil
	}
	if _, err := loadpoll.Parse(p.From, nil); err != nil {
		return fmt.Errorf("load_poll.from: %w", err)
	}
	if _, err := loadpoll.Parse(p.From, p.Pages); err != nil {
		return fmt.Errorf("load_poll.pages: %w", err)
	}
	return nil
}

const (
	// probeTimeout is how long the answer to a check or a poll may take.
	probeTimeout = time.Second
	// maxFailures is how many checks in a row may fail before the replica does not serve.
	maxFailures = 2
	// pollInterval is how often each replica is polled.
	pollInterval = 500 * time.Millisecond
)

// pollLoad polls the load of the members until the context ends; c = nil: not at all.
func (d *deployment) pollLoad(ctx context.Context, c *policy.LoadPoll) {
	if c == nil {
		return
	}
	source, err := loadpoll.Parse(c.From, c.Pages)
	if err != nil {
		d.log.Error("warmpath: load is not polled", "error", err) // cannot happen: the config was checked
		return
	}
	p := loadpoll.New(loadpoll.Options{
		Source: source, Connect: d.conns.connect, Logger: d.log,
		Report: func(id string, l load.Report) {
			d.update(func(x *sources) bool { x.poll(id, l); return false })
		},
		Interval: pollInterval, Timeout: probeTimeout,
	})
	d.mu.Lock()
	d.poller = p
	d.repoll()
	d.mu.Unlock()
	<-ctx.Done()
	p.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.poller = nil
	d.unpolled += p.Failed()
}

// repoll gives the members to the poller. Called with mu held.
func (d *deployment) repoll() {
	if d.poller == nil {
		return
	}
	all := make([]policy.Attributes, len(d.roster.order))
	for i, m := range d.roster.order {
		all[i] = m.Attributes
	}
	d.poller.SetFleet(all)
}

// pollProblems are the errors of replicas that do not answer polls, by id; failed counts the polls without an answer.
func (d *deployment) pollProblems() (problems map[string]string, failed int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.poller == nil {
		return nil, d.unpolled
	}
	return d.poller.Problems(), d.unpolled + d.poller.Failed()
}

// checkHealth checks the health of the members in rounds until the context ends; interval 0: not at all. What was found
// with another config stays: a replica that does not answer is not put back into service by a reload.
func (d *deployment) checkHealth(ctx context.Context, interval time.Duration) {
	if interval == 0 {
		d.checked = nil
		d.update(func(x *sources) bool { return x.check(nil) })
		return
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		unwell := d.checkRound(ctx, d.unregistered())
		if ctx.Err() != nil {
			return
		}
		d.update(func(x *sources) bool { return x.check(unwell) })
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
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

// checkRound checks members and returns those that do not serve.
func (d *deployment) checkRound(ctx context.Context, members []described) map[string]symptom {
	replicas := make(map[string]*checked, len(members))
	var g errgroup.Group
	g.SetLimit(maxChecking)
	for _, m := range members {
		c := d.checked[m.ID]
		if c == nil || c.address != m.Address {
			c = &checked{address: m.Address}
		}
		replicas[m.ID] = c
		g.Go(func() error {
			d.check(ctx, m.ID, c)
			return nil
		})
	}
	_ = g.Wait()
	d.checked = replicas
	unwell := make(map[string]symptom)
	for id, c := range replicas {
		if c.unwell() {
			unwell[id] = c.symptom
		}
	}
	return unwell
}

// check checks one replica.
func (d *deployment) check(ctx context.Context, id string, c *checked) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var a *healthpb.HealthCheckResponse
	conn, err := d.conns.connect(ctx, id)
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
		c.symptom.since = d.now()
		d.log.Warn("warmpath: a replica does not serve", "replica", id, "address", c.address, "why", c.symptom.why)
	case was && !c.unwell():
		d.log.Info("warmpath: a replica serves again", "replica", id, "address", c.address)
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
