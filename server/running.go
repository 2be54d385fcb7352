package server

import (
	"context"
	"reflect"
	"sync"
	"time"
)

// running is a deployment with its goroutines.
type running struct {
	*deployment
	tasks  tasks
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// tasks are what the goroutines do.
type tasks struct {
	interval time.Duration
	target   string
	resolve  time.Duration
	check    *HealthCheck
}

// adjust starts the goroutines for a config, anew if it has changed.
func (r *running) adjust(c *Config, d Deployment) {
	t := tasks{time.Duration(c.LoadInterval), d.Target, time.Duration(d.ResolveInterval), d.HealthCheck}
	if r.cancel != nil && reflect.DeepEqual(r.tasks, t) {
		return
	}
	r.stop()
	r.tasks = t
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	r.done.Go(func() { r.beat(ctx, t.interval) })
	if t.target != "" {
		on := func(all []described) { r.resolve(t.target, all) }
		f := follower{target: t.target, every: t.resolve, log: r.log, on: on}
		r.done.Go(func() { f.run(ctx) })
	}
	if t.check == nil {
		r.checkedUp(nil)
		return
	}
	k := &checker{config: *t.check, log: r.log, now: r.now, conns: &r.conns}
	r.done.Go(func() {
		k.run(ctx, func() []described { return r.sources.unregistered(r.members()) }, r.checkedUp)
	})
}

func (r *running) beat(ctx context.Context, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			_ = shielded(r.log, "the end of an interval", func() error { r.tick(r.now()); return nil })
		}
	}
}

// stop ends the goroutines.
func (r *running) stop() {
	if r.cancel != nil {
		r.cancel()
		r.done.Wait()
	}
}
