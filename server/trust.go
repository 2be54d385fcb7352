package server

import (
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/routing"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// reasonWithheld stands for a reason that would tell what is cached.
const reasonWithheld = "withheld"

// tellsOfCaches are the reasons that depend on what is cached where. Custom policies' own reasons may, too.
func tellsOfCaches(r routing.Reason) bool {
	switch r {
	case "", routing.ReasonRoundRobin, routing.ReasonLeastOfTwo, routing.ReasonRing, routing.ReasonRingFallback, routing.ReasonLeastLoaded,
		routing.ReasonPinned, routing.ReasonReserved, routing.ReasonNoKey, routing.ReasonRetry, routing.ReasonQueued:
		return false
	}
	return true
}

// withholdStatus takes out of a state what it says of other callers' prompts: from a count that grows, or from the size of an
// index, who asks in between can tell what was known.
func withholdStatus(a *warmpathv1.GetStatusResponse) {
	for _, d := range a.GetDeployments() {
		d.Index = nil
		for _, r := range d.GetReplicas() {
			r.Events = nil
		}
		told := d.Decisions[:0]
		hidden := &warmpathv1.DecisionCount{Policy: d.GetPolicy(), Reason: reasonWithheld}
		for _, c := range d.GetDecisions() {
			if tellsOfCaches(routing.Reason(c.GetReason())) {
				hidden.Count += c.GetCount()
			} else {
				told = append(told, c)
			}
		}
		if hidden.Count > 0 {
			told = append(told, hidden)
		}
		d.Decisions = told
	}
}

// withheld is an answer without what it says of other callers' prompts. An answer may be given to several.
func withheld(a *warmpathv1.ChooseReplicaResponse) *warmpathv1.ChooseReplicaResponse {
	a = proto.CloneOf(a)
	d := a.Decision
	d.MatchedTokens = 0
	for _, r := range []*string{&d.Reason, &d.Rule} {
		if tellsOfCaches(routing.Reason(*r)) {
			*r, d.Place = reasonWithheld, -1
		}
	}
	return a
}
