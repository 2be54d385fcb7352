package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/warmpath/warmpath/balancer/policy"
)

// words are the explanation for people.
func (x *explanation) words(q *policy.Request, n int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s sends the request to %s.\n\n", x.Policy, x.Replica)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-10s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("reason", "%s: %s", x.Reason, cmp.Or(meaning[x.Reason], "the policy's own word"))
	if x.Place >= 0 {
		line("place", "%d of %d in the order that every client computes alike for this key", x.Place+1, n)
	}
	if len(x.Fallbacks) == 0 {
		line("next", "none: the policy uses no other replica for this request")
	} else {
		line("next", "%s, each when those before it are full, gone or have failed", strings.Join(x.Fallbacks, ", then "))
	}
	if q.PromptTokens > 0 {
		how := "4 bytes each"
		if len(x.FirstTokens) > 0 {
			how = fmt.Sprintf("of the tokenizer, from %v on", x.FirstTokens)
		}
		line("prompt", "%s (%s), %d of them cached there", counted(q.PromptTokens, "token"), how, x.MatchedTokens)
	}
	if x.TokenizeError != "" {
		line("tokenizer", "failed: %s", x.TokenizeError)
	}
	line("fleet", "%s, taken to be connected and idle; nothing was sent before", counted(n, "replica"))
	return b.String()
}

// meaning is what the reasons mean.
var meaning = map[policy.Reason]string{
	policy.ReasonRoundRobin:   "its turn; a client begins at random, here by --seed",
	policy.ReasonLeastOfTwo:   "two drawn at random, here by --seed, and the one with fewer requests under way taken",
	policy.ReasonRing:         "the key's own replica, the first clockwise from the key on the hash ring",
	policy.ReasonRingFallback: "the next on the hash ring, since those before it may not have the request",
	policy.ReasonPrefixMatch:  "it holds the longest known prefix of the prompt",
	policy.ReasonRendezvous:   "no replica is known to hold the prompt: the first in the rendezvous order of its key",
	policy.ReasonRendezvousSpill: "later in the rendezvous order of the key, since those before it may not serve " +
		"it or are loaded",
	policy.ReasonLeastLoaded: "it has the least load",
	policy.ReasonKVCost:      "the request costs least there, or about the least and most of its prompt is cached: prompt tokens left to compute, and the work under way",
	policy.ReasonKVNearTie:   "it costs and saves about as much as others: the first of these in the rendezvous order of its key",
	policy.ReasonNoKey: "the request has no key for the policy (see --session, --request-id, --prompt): fewer requests " +
		"under way of two drawn at random, by --seed",
}
