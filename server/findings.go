package server

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/routing"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// found takes what a watching client finds.
func (d *deployment) found(w *watcher, r *warmpathv1.FindingReport) error {
	if r == nil {
		return nil
	}
	if len(r.GetFindings()) > maxFindings {
		return invalid("findings: more than %d", maxFindings)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ledger.clients[w.client.id] == w.client { // else another watch took its place
		d.find(w.client.id, r.GetFindings())
	}
	return nil
}

// find enters findings; those of replicas that have left are passed over. Called with mu held.
func (d *deployment) find(id string, all []*warmpathv1.Finding) {
	all = slices.DeleteFunc(all, func(f *warmpathv1.Finding) bool { return !d.isMember(f.GetReplica()) })
	before := d.verdicts.stamp
	d.verdicts.find(id, all, len(d.roster.order), d.now())
	if d.verdicts.stamp != before {
		d.wakeWatchers()
	}
}

// judge lets the verdicts go on, our own Router's findings among them, and puts them into force there. Called with mu held.
func (d *deployment) judge(router *routing.Router, now time.Time) {
	var own []*warmpathv1.Finding
	for _, f := range router.Findings() {
		if n := d.numberOf(f.ID); n != 0 {
			own = append(own, &warmpathv1.Finding{Replica: n, Kind: findingKinds[f.Kind], Term: f.Term})
		}
	}
	d.find(ownName, own)
	var clients []string
	d.verdicts.advance(now, func() []string {
		if clients == nil {
			clients = d.jury()
		}
		return clients
	})
	if d.judged == d.verdicts.stamp && d.judgedBy == router {
		return
	}
	d.judged, d.judgedBy = d.verdicts.stamp, router
	router.SetVerdicts(d.verdictsFor(ownName))
}

// jury are the names of those whose turn it may be: the clients that watch and, while it has requests under way, our
// own Router. Called with mu held.
func (d *deployment) jury() []string {
	all := make([]string, 0, len(d.ledger.clients)+1)
	for id, c := range d.ledger.clients {
		if !c.ended {
			all = append(all, id)
		}
	}
	if d.leases.any() {
		all = append(all, ownName)
	}
	slices.Sort(all)
	return all
}

func (d *deployment) verdictsFor(id string) []routing.Verdict {
	var all []routing.Verdict
	for _, p := range d.verdicts.told(id).GetVerdicts() {
		for _, m := range d.roster.order {
			if m.number == p.GetReplica() {
				all = append(all, routing.Verdict{ID: m.ID, State: verdictStates[p.GetState()], Term: p.GetTerm(), Turn: p.GetTurn()})
			}
		}
	}
	return all
}

// verdictsNews is what a watcher does not know of the verdicts, nil if it knows all. Called with mu held.
func (d *deployment) verdictsNews(w *watcher) *warmpathv1.VerdictUpdate {
	if w.judged == d.verdicts.stamp {
		return nil
	}
	w.judged = d.verdicts.stamp
	u := d.verdicts.told(w.client.id)
	if w.verdicts != nil && proto.Equal(w.verdicts, u) {
		return nil
	}
	w.verdicts = u
	return u
}

var findingKinds = map[routing.FindingKind]warmpathv1.FindingKind{
	routing.FindingFailing: warmpathv1.FindingKind_FINDING_KIND_FAILING,
	routing.FindingLate:    warmpathv1.FindingKind_FINDING_KIND_LATE,
	routing.FindingTrying:  warmpathv1.FindingKind_FINDING_KIND_TRYING,
	routing.FindingWell:    warmpathv1.FindingKind_FINDING_KIND_WELL,
}

var verdictStates = map[warmpathv1.VerdictState]routing.VerdictState{
	warmpathv1.VerdictState_VERDICT_STATE_SUSPECT: routing.VerdictSuspect,
	warmpathv1.VerdictState_VERDICT_STATE_EJECTED: routing.VerdictEjected,
}
