package lookaside

import (
	"github.com/warmpath/warmpath/balancer/routing"
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
		w.eject(r)
	}
}

// eject puts into force on one Router what the server ejects. Called with mu held.
func (w *Watch) eject(r *routing.Router) {
	for _, takenBack := range []bool{true, false} { // what is taken back makes room
		for _, rep := range r.View().Replicas() {
			if s := w.ejected[rep.ID]; (s == outlier.Healthy) == takenBack {
				r.Outliers().SetRemote(rep.Outlier(), s)
			}
		}
	}
	r.Sync()
}

// suspendOutliers is for when the server is silent: its ejections are probed. Called with mu held.
func (w *Watch) suspendOutliers() {
	for _, r := range w.routers {
		forsake(r)
	}
}

func forsake(r *routing.Router) {
	for _, rep := range r.View().Replicas() {
		r.Outliers().Forsake(rep.Outlier())
	}
	r.Sync()
}

// outcomes are what the calls of the Routers showed since the last report, nil where there is nothing; anew is for the first
// report to a server. Called with mu held.
func (w *Watch) outcomes(anew bool) *warmpathv1.OutcomeReport {
	report := new(warmpathv1.OutcomeReport)
	for number, m := range w.members.named {
		o := &warmpathv1.ReplicaOutcomes{Replica: number}
		for _, r := range w.routers {
			if rep := r.View().ByID(m.ID); rep != nil {
				c := r.Outliers().Take(rep.Outlier(), anew)
				o.Successes += uint32(c.Successes)
				o.Failures += uint32(c.Failures)
				o.Late += uint32(c.Late)
			}
		}
		if o.Successes+o.Failures+o.Late > 0 {
			report.Replicas = append(report.Replicas, o)
		}
	}
	for _, r := range w.routers {
		r.Sync()
	}
	if len(report.Replicas) == 0 {
		return nil
	}
	return report
}
