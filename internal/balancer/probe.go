package balancer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/loadprobe"
	"github.com/warmpath/warmpath/internal/router"
)

// newProber returns that of the channel.
func (b *lb) newProber() *loadprobe.Prober {
	return loadprobe.New(loadprobe.Options{
		Now:     time.Now,
		Connect: b.direct,
		State:   func(r *policy.Replica) *loadprobe.State { return &hostOf(r).probed },
		Logger:  func() *slog.Logger { return b.handle().Logger },
	})
}

// probe returns what asks the replicas before a call reserves one in a Router; nil where none is to be asked: the config
// wants it not, the look-aside server knows the load, or the policy does not look at it.
func (b *lb) probe(c *policy.Config, r *router.Router) func(context.Context, *policy.Request) {
	if c.LoadPoll == nil || b.attached.watch != nil || r.Uses()&(policy.UsesLoad|policy.UsesOngoing) == 0 {
		return nil
	}
	source := loadprobe.Source(c.LoadPoll.From)
	return func(call context.Context, q *policy.Request) {
		if q.Pin != "" || len(r.View().Connected()) < 2 || !r.Rollout.Decides(q) {
			return
		}
		ctx, cancel := context.WithTimeout(call, loadprobe.MaxWait)
		defer cancel()
		loadprobe.Before(ctx, r, q, func(rep *policy.Replica) bool { return b.prober.Ask(ctx, source, rep, r.Report) })
	}
}

// checkLoadPoll refuses what a client cannot ask.
func checkLoadPoll(c *policy.LoadPoll) error {
	switch {
	case c == nil:
		return nil
	case len(c.Pages) > 0:
		return errors.New("load_poll.pages: a client reads no pages; a look-aside server does")
	}
	if err := loadprobe.Source(c.From).Check(); err != nil {
		return fmt.Errorf("load_poll.from: %w", err)
	}
	return nil
}
