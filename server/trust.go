package server

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// reasonWithheld replaces a reason that reveals the contents of caches.
const reasonWithheld = "withheld"

// promptless are the policies that do not use prompts: their reasons reveal nothing of caches.
var promptless = map[string]bool{"round_robin": true, "power_of_two_choices": true, "consistent_hash": true}

// revealsCaches reports whether a policy's reason may depend on the contents of caches. Of a policy that uses prompts
// every reason does that is not the request's own: "round_robin" and "least_loaded" are its reasons where nothing is
// cached.
func revealsCaches(policyName string, r policy.Reason) bool {
	switch r {
	case "", policy.ReasonPinned, policy.ReasonReserved, policy.ReasonNoKey, policy.ReasonRetry, policy.ReasonQueued:
		return false
	case policy.ReasonRoundRobin, policy.ReasonLeastOfTwo, policy.ReasonRing, policy.ReasonRingFallback,
		policy.ReasonLeastLoaded:
		return !promptless[policyName]
	}
	return true
}

// withholdStatus removes the figures of a state that reveal the prompts of others: two readings of a count, of the
// index's size, or of its broadcast, with a request between them, show what was cached.
func withholdStatus(a *warmpathv1.GetStatusResponse) {
	for _, d := range a.GetDeployments() {
		d.Index, d.BroadcastBytes, d.BroadcastMessages = nil, 0, 0
		for _, r := range d.GetReplicas() {
			r.Events = nil
		}
		d.Decisions = withheldCounts(d.GetDecisions())
	}
}

// withheldCounts adds up the decisions of each policy whose reasons are withheld.
func withheldCounts(all []*warmpathv1.DecisionCount) (shown []*warmpathv1.DecisionCount) {
	hidden := make(map[string]*warmpathv1.DecisionCount)
	for _, c := range all {
		sum := hidden[c.GetPolicy()]
		switch {
		case !revealsCaches(c.GetPolicy(), policy.Reason(c.GetReason())):
			shown = append(shown, c)
		case sum != nil:
			sum.Count += c.GetCount()
		default:
			sum = &warmpathv1.DecisionCount{Policy: c.GetPolicy(), Reason: reasonWithheld, Count: c.GetCount()}
			hidden[c.GetPolicy()] = sum
			shown = append(shown, sum)
		}
	}
	slices.SortFunc(shown, moreFrequent) // anew: the old order reveals the counts that were added up
	return shown
}

// withheld returns a copy of an answer without the fields that reveal the prompts of others, the load among them: it
// contains the uncached part of earlier prompts.
func withheld(a *warmpathv1.ChooseReplicaResponse) *warmpathv1.ChooseReplicaResponse {
	a = proto.CloneOf(a)
	a.Candidates = nil
	d := a.Decision
	d.MatchedTokens, d.Load = 0, 0
	for _, r := range []*string{&d.Reason, &d.Rule} {
		if revealsCaches(d.GetPolicy(), policy.Reason(*r)) {
			*r, d.Place = reasonWithheld, -1
		}
	}
	return a
}
