package server

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/fault"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// maxLives bounds the reports of one message.
const maxLives = 10_000

// ReportLife implements the service.
func (s services) ReportLife(ctx context.Context,
	r *warmpathv1.ReportLifeRequest) (*warmpathv1.ReportLifeResponse, error) {
	if len(r.GetLives()) > maxLives {
		return nil, invalid("lives: more than %d", maxLives)
	}
	a := new(warmpathv1.ReportLifeResponse)
	p := s.principalOf(ctx)
	for _, life := range r.GetLives() {
		if !s.lived(p, life) {
			a.Unknown = append(a.Unknown, life.GetReservation())
		}
	}
	return a, nil
}

// lived applies one report. It returns false if there is no such reservation.
func (s *Server) lived(p *principal, r *warmpathv1.LifeReport) bool {
	all := *s.deployments.Load()
	if session := r.GetEndedSession(); session != 0 {
		for name, d := range all {
			if p.may(name) {
				d.hosted.Load().router.Fleet.Forget(session)
			}
		}
		return true
	}
	name := deploymentOf(r.GetReservation())
	d := all[name]
	return d != nil && p.may(name) && d.picks.lived(r)
}

// deploymentOf is the name of a reservation's deployment, "" where it has none.
func deploymentOf(reservation string) string {
	return reservation[:max(strings.LastIndexByte(reservation, '#'), 0)]
}

func (k *picks) lived(r *warmpathv1.LifeReport) bool {
	if r.GetStage() == warmpathv1.LifeStage_LIFE_STAGE_RELEASED {
		x := k.leases.end(r.GetReservation())
		if x != nil {
			o := outcome(r.GetOutcome())
			x.release(o)
			k.tally.used(&x.q, &x.reservation.Decision, o.Usage)
			k.recorder.Ended(context.Background(), k.hosted.Load().policy(), &x.q, &x.reservation.Decision, &o)
		}
		return x != nil
	}
	prefilled := r.GetStage() == warmpathv1.LifeStage_LIFE_STAGE_PREFILL_COMPLETE
	x, first := k.leases.renew(r.GetReservation(), prefilled, k.now())
	switch {
	case first && x.prefill != nil:
		x.endPrefill(policy.Outcome{Sent: true, Usage: policy.NoUsage})
	case first:
		x.reservation.Answered()
	}
	return x != nil
}

// outcome is the reported end of a reservation; nothing is learned from one that is missing.
func outcome(o *warmpathv1.Outcome) policy.Outcome {
	if o == nil {
		return policy.Outcome{Sent: true, Fault: policy.GivenUp, Usage: policy.NoUsage}
	}
	count := func(n *uint32) int {
		if n == nil {
			return -1
		}
		return int(min(*n, maxLength))
	}
	out := policy.Outcome{
		Sent:         o.GetSent(),
		FirstMessage: time.Duration(min(o.GetFirstMessageUs(), uint64(24*time.Hour/time.Microsecond))) * time.Microsecond,
		Usage: policy.Usage{
			PromptTokens: count(o.PromptTokens), CachedTokens: count(o.CachedTokens), OutputTokens: count(o.OutputTokens),
		},
	}
	if code := codes.Code(o.GetCode()); code != codes.OK {
		out.Err, out.Fault = status.Error(code, "as reported"), fault.OfCode(code)
	} else if !out.Sent {
		out.Fault = policy.GivenUp
	}
	return out
}
