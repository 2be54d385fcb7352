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
// itself is [routing.View.LeastOfTwo]: other policies fall back to it.
package poweroftwo

import (
	"context"

	"github.com/warmpath/warmpath/balancer/routing"
)

// Name is the policy's name in a config.
const Name = "power_of_two_choices"

// Config has no parameters.
type Config struct{}

// DefaultConfig returns the config that an empty one stands for.
func DefaultConfig() Config { return Config{} }

// New returns the policy.
func New(Config) (*Policy, error) { return &Policy{}, nil }

// Policy is the policy power_of_two_choices. It has no state.
type Policy struct{}

var (
	_ routing.Policy       = (*Policy)(nil)
	_ routing.KeyUser      = (*Policy)(nil)
	_ routing.QuickChooser = (*Policy)(nil)
	_ routing.Previewer    = (*Policy)(nil)

	_ routing.OngoingReader = (*Policy)(nil)
)

// Uses implements [routing.KeyUser]: the policy looks at no key.
func (*Policy) Uses() routing.Uses { return 0 }

// ReadsOngoing implements [routing.OngoingReader].
func (*Policy) ReadsOngoing() {}

// Prepare implements [routing.Policy]. There is nothing to prepare.
func (*Policy) Prepare(context.Context, *routing.Request, *routing.View) error { return nil }

// ChooseQuick implements [routing.QuickChooser].
func (*Policy) ChooseQuick(_ *routing.Request, v *routing.View) (*routing.Replica, routing.Reason) {
	return v.QuickLeastOfTwo(), routing.ReasonLeastOfTwo
}

// Preview implements [routing.Previewer]: another draw.
func (p *Policy) Preview(q *routing.Request, v *routing.View) routing.Decision { return p.Choose(q, v) }

// Choose implements [routing.Policy].
func (*Policy) Choose(q *routing.Request, v *routing.View) routing.Decision {
	if r := v.LeastOfTwo(q); r != nil {
		return routing.To(r, routing.ReasonLeastOfTwo)
	}
	return routing.Wait()
}
