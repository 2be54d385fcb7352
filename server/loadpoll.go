package server

import (
	"context"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/loadpoll"
	"github.com/warmpath/warmpath/internal/router/load"
)

// pollInterval is how often each replica is polled.
const pollInterval = 500 * time.Millisecond

func (d *Deployment) checkLoadPoll() error {
	if d.LoadPoll == "" && len(d.LoadPages) == 0 {
		return nil
	}
	_, err := loadpoll.Parse(d.LoadPoll, d.LoadPages)
	return err
}

// pollLoad polls the load of the members until the context ends, where the config has it.
func (d *deployment) pollLoad(ctx context.Context, c *Deployment) {
	if c.LoadPoll == "" {
		return
	}
	source, err := loadpoll.Parse(c.LoadPoll, c.LoadPages)
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
