package server

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// reasonWithheld stands for a reason that would tell what is cached.
const reasonWithheld = "withheld"

// promptless are the policies that do not look at prompts, so that none of their reasons depends on what is cached.
var promptless = map[string]bool{"round_robin": true, "power_of_two_choices": true, "consistent_hash": true}

// tellsOfCaches reports whether a policy's reason may depend on what is cached where. Of a policy that looks at prompts all that
// is not the request's own does: "round_robin" and "least_loaded" are what it says where nothing was cached.
func tellsOfCaches(policyName string, r policy.Reason) bool {
	switch r {
	case "", policy.ReasonPinned, policy.ReasonReserved, policy.ReasonNoKey, policy.ReasonRetry, policy.ReasonQueued:
		return false
	case policy.ReasonRoundRobin, policy.ReasonLeastOfTwo, policy.ReasonRing, policy.ReasonRingFallback, policy.ReasonLeastLoaded:
		return !promptless[policyName]
	}
	return true
}

// withholdStatus takes out of a state what it says of other callers' prompts: from a count that grows, from the size of an index,
// or of what watching clients are sent of it, who asks in between can tell what was known.
func withholdStatus(a *warmpathv1.GetStatusResponse) {
	for _, d := range a.GetDeployments() {
		d.Index, d.BroadcastBytes, d.BroadcastMessages = nil, 0, 0
		for _, r := range d.GetReplicas() {
			r.Events = nil
		}
		d.Decisions = withheldCounts(d.GetDecisions())
	}
}

// withheldCounts puts the decisions of each policy together whose reasons are withheld.
func withheldCounts(all []*warmpathv1.DecisionCount) (told []*warmpathv1.DecisionCount) {
	hidden := make(map[string]*warmpathv1.DecisionCount)
	for _, c := range all {
		sum := hidden[c.GetPolicy()]
		switch {
		case !tellsOfCaches(c.GetPolicy(), policy.Reason(c.GetReason())):
			told = append(told, c)
		case sum != nil:
			sum.Count += c.GetCount()
		default:
			sum = &warmpathv1.DecisionCount{Policy: c.GetPolicy(), Reason: reasonWithheld, Count: c.GetCount()}
			hidden[c.GetPolicy()] = sum
			told = append(told, sum)
		}
	}
	slices.SortFunc(told, moreFrequent) // anew: as they stood, the first of those put together had the place of its own count
	return told
}

// withheld is an answer without what it says of other callers' prompts. An answer may be given to several. The load goes, too: it
// has in it what was not cached of the prompts asked for before.
func withheld(a *warmpathv1.ChooseReplicaResponse) *warmpathv1.ChooseReplicaResponse {
	a = proto.CloneOf(a)
	a.Candidates = nil
	d := a.Decision
	d.MatchedTokens, d.Load = 0, 0
	for _, r := range []*string{&d.Reason, &d.Rule} {
		if tellsOfCaches(d.GetPolicy(), policy.Reason(*r)) {
			*r, d.Place = reasonWithheld, -1
		}
	}
	return a
}
