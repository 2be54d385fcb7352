package sim

import (
	"context"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/loadprobe"
	routerload "github.com/warmpath/warmpath/internal/router/load"
)

// poll asks replicas before a request is routed, where clients do.
func (r *run) poll(ctx context.Context, f *flight) {
	if r.Share != SharePoll && r.Share != SharePollCount {
		return
	}
	loadprobe.Before(ctx, f.router, &f.req, func(rep *policy.Replica) bool {
		if last, ever := r.answered[rep]; ever && r.now-last < loadprobe.Fresh {
			return false
		}
		r.answered[rep] = r.now
		r.polls++
		f.router.Report(rep.ID, r.loadOf(rep.Index()))
		return true
	})
}

// loadOf is what an engine answers.
func (r *run) loadOf(i int) routerload.Report {
	if r.Share == SharePollCount {
		l := r.machines[i].engine.Load()
		return routerload.Report{Ongoing: l.Running + l.Waiting, Waiting: l.Waiting, QueuedTokens: -1}
	}
	var sum routerload.Report
	for _, rt := range r.routers {
		rep := rt.View().Replicas()[i]
		sum.Ongoing += rep.Ongoing()
		sum.QueuedTokens += int64(rep.QueuedTokens())
	}
	return sum
}
