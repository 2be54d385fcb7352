package lookaside

import (
	"slices"

	"github.com/warmpath/warmpath/balancer/routing"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// takeVerdicts passes on what the server makes of all clients' findings. Called with mu held.
func (w *Watch) takeVerdicts(u *warmpathv1.VerdictUpdate) {
	w.verdicts = w.verdicts[:0:0]
	for _, p := range u.GetVerdicts() {
		r, ok := w.members.named[p.GetReplica()]
		if !ok {
			continue
		}
		v := routing.Verdict{ID: r.ID, Term: p.GetTerm(), Turn: p.GetTurn()}
		switch p.GetState() {
		case warmpathv1.VerdictState_VERDICT_STATE_SUSPECT:
			v.State = routing.VerdictSuspect
		case warmpathv1.VerdictState_VERDICT_STATE_EJECTED:
			v.State = routing.VerdictEjected
		}
		w.verdicts = append(w.verdicts, v)
	}
	w.tellVerdicts()
}

// tellVerdicts puts into force what was told. Called with mu held.
func (w *Watch) tellVerdicts() {
	for _, r := range w.routers {
		r.SetVerdicts(w.verdicts)
	}
}

// dropVerdicts is for when another server is heard than the one that told of them. Called with mu held.
func (w *Watch) dropVerdicts() {
	w.suspendVerdicts()
	w.verdicts = nil
}

// suspendVerdicts is for when the server that told of them is no longer heard. Called with mu held.
func (w *Watch) suspendVerdicts() {
	if len(w.verdicts) == 0 {
		return
	}
	for _, r := range w.routers {
		r.DropVerdicts()
	}
}

// findings are those of our Routers. Called with mu held.
func (w *Watch) findings() []*warmpathv1.Finding {
	var all []*warmpathv1.Finding
	for _, r := range w.routers {
		for _, f := range r.Findings() {
			if n, ok := w.members.numberOf(f.ID); ok && len(all) < maxFindings {
				all = append(all, &warmpathv1.Finding{Replica: n, Kind: kinds[f.Kind], Term: f.Term})
			}
		}
	}
	return all
}

// maxFindings is as many as a server takes.
const maxFindings = 1000

var kinds = map[routing.FindingKind]warmpathv1.FindingKind{
	routing.FindingFailing: warmpathv1.FindingKind_FINDING_KIND_FAILING,
	routing.FindingLate:    warmpathv1.FindingKind_FINDING_KIND_LATE,
	routing.FindingTrying:  warmpathv1.FindingKind_FINDING_KIND_TRYING,
	routing.FindingWell:    warmpathv1.FindingKind_FINDING_KIND_WELL,
}

// numberOf returns the server's number of a replica. O(replicas).
func (m *members) numberOf(id string) (number uint32, ok bool) {
	for n, r := range m.named {
		if r.ID == id {
			return n, true
		}
	}
	return 0, false
}

// sendFindings tells the server what our calls say of replicas, if that has changed or is to be renewed: what it could not
// heed before it may now. An error shows in what is received.
func (f *following) sendFindings(renew bool) {
	f.w.mu.Lock()
	found := f.w.findings()
	f.w.mu.Unlock()
	if slices.EqualFunc(found, f.found, sameFinding) && !(renew && len(found) > 0) {
		return
	}
	f.found = found
	_ = f.stream.Send(&warmpathv1.WatchReplicasRequest{Findings: &warmpathv1.FindingReport{Findings: found}})
}

func sameFinding(a, b *warmpathv1.Finding) bool {
	return a.GetReplica() == b.GetReplica() && a.GetKind() == b.GetKind() && a.GetTerm() == b.GetTerm()
}
