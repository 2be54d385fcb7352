package baseline

import "github.com/warmpath/warmpath/balancer/policy"

// What decides which requests are split over a replica that prefills and one that decodes.
const (
	SplitCost  = "cost"       // the product's own
	SplitNever = "aggregated" // nothing is split, and no replica has a role
)

// Splits are all of them, by name.
var Splits = []string{SplitCost, SplitNever, "always", "llmd", "dynamo", "uncached_512", "uncached_2048"}

// Split is a rule of this name: of the length of the prompt, and the decision on the whole request. nil for those that
// are none.
func Split(name string) func(prompt int, whole policy.Decision) bool {
	uncached := func(least int, part float64) func(int, policy.Decision) bool {
		return func(prompt int, whole policy.Decision) bool {
			n := prompt - whole.MatchedTokens
			return n >= least && float64(n) >= part*float64(prompt)
		}
	}
	switch name {
	case "always":
		return uncached(0, 0)
	case "llmd":
		return uncached(16, 0)
	case "dynamo":
		return uncached(2048, 0.7)
	case "uncached_512":
		return uncached(512, 0)
	case "uncached_2048":
		return uncached(2048, 0)
	}
	return nil
}
