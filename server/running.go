package server

import (
	"context"
	"sync"
	"time"
)

// running is a deployment with its goroutines.
type running struct {
	*deployment
	interval time.Duration
	target   string
	every    time.Duration
	cancel   context.CancelFunc
	done     sync.WaitGroup
	checks   checks
}

// adjust starts the goroutines for a config, anew if it has changed.
func (r *running) adjust(c *Config, d Deployment) {
	r.checks.adjust(d.HealthCheck, r.deployment)
	interval, every := time.Duration(c.LoadInterval), time.Duration(d.ResolveInterval)
	if r.cancel != nil && r.interval == interval && r.target == d.Target && r.every == every {
		return
	}
	r.halt()
	r.interval, r.target, r.every = interval, d.Target, every
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	r.done.Go(func() { r.beat(ctx, interval) })
	if d.Target != "" {
		f := follower{target: d.Target, every: every, log: r.log, on: func(all []described) { r.resolve(d.Target, all) }}
		r.done.Go(func() { f.run(ctx) })
	}
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

// stop ends all goroutines.
func (r *running) stop() {
	r.checks.stop()
	r.halt()
}

// halt ends those of adjust but for the checks.
func (r *running) halt() {
	if r.cancel != nil {
		r.cancel()
		r.done.Wait()
	}
}
