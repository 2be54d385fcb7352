// Package poweroftwo is the policy "power_of_two_choices": of two replicas
// drawn at random, the one with fewer requests under way.
//
// The rule. Two distinct available replicas are drawn uniformly from the first
// pool that has any: for a LoRA adapter those that have it loaded, then those
// with the fewest adapters, then all; else those on the client's node, then in its zone,
// then all. The one with fewer requests under way wins, a tie goes to the first drawn.
// After a failed attempt the pools come first without the replicas tried.
//
// Complexity. O(1); O(pool) where most of a pool is unavailable, which then is
// scanned once. Choose does not allocate.
//
// Guarantees. With n requests on n replicas the busiest one has O(log log n)
// more than the mean with high probability. Reservations count from the moment
// of the pick, so a burst sees itself. Requests of other clients count where a look-aside
// server broadcasts them or replicas report them.
//
// Source: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing";
// Ray Serve's PowerOfTwoChoicesRequestRouter, which probes the two. The draw
// itself is [policy.View.LeastOfTwo]: other policies fall back to it.
package poweroftwo

import "github.com/warmpath/warmpath/balancer/policy"

// Name is the policy's name in a config.
const Name = "power_of_two_choices"

// Config has no parameters.
type Config struct{}

// Name implements [policy.NamedConfig].
func (Config) Name() string { return Name }

// New returns the policy.
func New(Config) (policy.Policy, error) {
	return policy.Policy{
		Uses:    policy.UsesOngoing,
		Choose:  choose,
		Preview: choose, // another draw
	}, nil
}

func choose(q *policy.Request, v policy.View) policy.Decision {
	return policy.To(v.LeastOfTwo(q), policy.ReasonLeastOfTwo)
}
