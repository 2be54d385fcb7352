package lookaside

import (
	"github.com/warmpath/warmpath/internal/outlier"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// takeOutliers passes on which replicas the server ejects. Called with mu held.
func (w *Watch) takeOutliers(u *warmpathv1.OutlierUpdate) {
	w.ejected = make(map[string]outlier.State, len(u.GetReplicas()))
	for _, p := range u.GetReplicas() {
		if r, ok := w.members.named[p.GetReplica()]; ok {
			w.ejected[r.ID] = outlier.Ejected
			if p.GetProbe() {
				w.ejected[r.ID] = outlier.HalfOpen
			}
		}
	}
	w.putOutliers()
}

// putOutliers puts into force what the server ejects. Called with mu held.
func (w *Watch) putOutliers() {
	for _, r := range w.routers {
		r.SetEjected(w.ejected)
	}
}

// suspendOutliers is for when the server is silent: its ejections are probed. Called with mu held.
func (w *Watch) suspendOutliers() {
	for _, r := range w.routers {
		r.ForsakeEjected()
	}
}

// outcomes are what the calls of the Routers showed since the last report, nil where there is nothing; anew is for the first
// report to a server. Called with mu held.
func (w *Watch) outcomes(anew bool) *warmpathv1.OutcomeReport {
	sums := make(map[string]*warmpathv1.ReplicaOutcomes)
	for _, r := range w.routers {
		for _, c := range r.TakeOutcomes(anew) {
			if sums[c.ID] == nil {
				sums[c.ID] = new(warmpathv1.ReplicaOutcomes)
			}
			s := sums[c.ID]
			s.Successes += uint32(c.Successes)
			s.Failures += uint32(c.Failures)
			s.Late += uint32(c.Late)
		}
	}
	if len(sums) == 0 {
		return nil
	}
	report := new(warmpathv1.OutcomeReport)
	for number, r := range w.members.named {
		if s := sums[r.ID]; s != nil {
			s.Replica = number
			report.Replicas = append(report.Replicas, s)
		}
	}
	return report
}
