package extproc_test

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/internal/endpoint"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// recorder records the endpoint's requests and reports.
type recorder struct {
	endpoint.Host

	mu    sync.Mutex // guards what follows
	asked []*warmpathv1.ChooseReplicaRequest
	chose []string // by the last answer: the pick and its fallbacks
	lives []*warmpathv1.LifeReport
	lease uint32 // replaces the server's, in milliseconds
}

func (r *recorder) wrap(h endpoint.Host) endpoint.Host {
	r.Host = h
	return r
}

func (r *recorder) ChooseReplica(ctx context.Context, q *warmpathv1.ChooseReplicaRequest) (*warmpathv1.ChooseReplicaResponse, error) {
	a, err := r.Host.ChooseReplica(ctx, q)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, proto.CloneOf(q))
	r.chose = []string{a.GetReplica().GetAddress()}
	for _, f := range a.GetFallbacks() {
		r.chose = append(r.chose, f.GetAddress())
	}
	if err == nil && r.lease > 0 {
		a.Reservation.LeaseMs = r.lease
	}
	return a, err
}

func (r *recorder) ReportLife(ctx context.Context, q *warmpathv1.ReportLifeRequest) (*warmpathv1.ReportLifeResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lives = append(r.lives, q.GetLives()...)
	return r.Host.ReportLife(ctx, q)
}

// last is the last request.
func (r *recorder) last() *warmpathv1.ChooseReplicaRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked[len(r.asked)-1]
}

// stages are the reports so far, without those of progress.
func (r *recorder) stages() (all []warmpathv1.LifeStage) {
	for _, l := range r.reports() {
		if l.GetStage() != warmpathv1.LifeStage_LIFE_STAGE_PROGRESS {
			all = append(all, l.GetStage())
		}
	}
	return all
}

func (r *recorder) reports() []*warmpathv1.LifeReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lives)
}

// outcome is the outcome of the last release.
func (r *recorder) outcome() *warmpathv1.Outcome {
	all := r.reports()
	for i := range slices.Backward(all) {
		if all[i].GetStage() == warmpathv1.LifeStage_LIFE_STAGE_RELEASED {
			return all[i].GetOutcome()
		}
	}
	return nil
}
