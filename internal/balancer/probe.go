package balancer

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/connectivity"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/loadprobe"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/router/load"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// probes returns what asks the replicas before a call reserves one in a Router; nil where none is to be asked: by the
// config, since a look-aside server sends the load, or because the policy does not look at it, or cannot be asked for a
// decision that is not carried out.
func (b *lb) probes(c *policy.Config, r *router.Router) func(context.Context, *policy.Request) (asked bool) {
	p := r.Policy()
	loads := policy.UsesLoad | policy.UsesOngoing
	if c.LoadPoll == "" || b.attached.watch != nil || p.Uses&loads == 0 || p.Preview == nil {
		return nil
	}
	source := loadprobe.Source(c.LoadPoll)
	return func(call context.Context, q *policy.Request) (asked bool) {
		if q.Pin != "" || len(r.View().Connected()) < 2 || !r.Rollout.Decides(q) {
			return false
		}
		wait := loadprobe.MaxWait
		if end, ok := call.Deadline(); ok {
			wait = min(wait, time.Until(end)/10)
		}
		ctx, cancel := context.WithTimeout(call, wait)
		defer cancel()
		loadprobe.Before(ctx, r, q, func(rep *policy.Replica) bool { return b.probe(ctx, source, r, rep) })
		return true
	}
}

// probe asks a replica for its load unless that is under way, and returns whether the policy is to choose again.
func (b *lb) probe(ctx context.Context, source loadprobe.Source, r *router.Router, rep *policy.Replica) bool {
	h := hostOf(rep)
	if h.connectivity() != connectivity.Ready {
		return false
	}
	answered, asks := h.probed.Begin(time.Now())
	if asks {
		select {
		case b.besides <- struct{}{}:
			go b.ask(source, r, rep.ID, &h.probed)
		default:
			h.probed.End(time.Now(), loadprobe.ErrNotMade)
			b.handle().Telemetry.Count(ctx, telemetry.LoadPolls, r.Policy().Name, telemetry.CallDropped)
		}
	}
	if answered == nil {
		return r.Load.Assume(rep.ID)
	}
	select {
	case <-answered:
		return true
	case <-ctx.Done():
		r.Load.Assume("")
		return false
	}
}

// ask makes a probe that has begun.
func (b *lb) ask(source loadprobe.Source, r *router.Router, id string, state *loadprobe.State) {
	defer func() { <-b.besides }()
	ctx, cancel := context.WithTimeout(b.ctx, loadprobe.Timeout)
	defer cancel()
	var l load.Report
	conn, err := b.direct(ctx, id)
	if err == nil {
		l, err = source.Ask(ctx, conn)
	}
	how := telemetry.CallFailed
	if err == nil {
		how = telemetry.CallDone
		r.Report(id, l)
	}
	b.handle().Telemetry.Count(ctx, telemetry.LoadPolls, r.Policy().Name, how)
	if state.End(time.Now(), err) && b.ctx.Err() == nil {
		b.handle().Logger.Warn("warmpath: a replica does not answer load_poll; it is asked less often",
			"replica", id, "from", string(source), "error", err)
	}
}

// checkLoadPoll refuses what a client cannot ask.
func checkLoadPoll(from string) error {
	if from == "" {
		return nil
	}
	if err := loadprobe.Source(from).Check(); err != nil {
		return fmt.Errorf("load_poll: %w", err)
	}
	return nil
}
