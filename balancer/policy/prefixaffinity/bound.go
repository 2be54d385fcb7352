package prefixaffinity

import (
	"math"

	"github.com/warmpath/warmpath/balancer/policy"
)

// sample is among how many replicas the least loaded is looked for. Of larger pools
// every choice looks at others, in turn.
const sample = 64

// within reports whether a replica that is expected to have so many of the prompt's
// tokens cached is within the load bound.
func (c *choice) within(r *policy.Replica, expected int) bool {
	over := c.View.Load(r) - c.slack - reuseWeight*float64(max(expected, 0))
	return over <= 0 || over <= c.leastLoad()
}

// leastLoad returns the load of the least loaded that is available in the pool, or in
// a sample of it. It is looked for once a pool, and not before it is needed.
func (c *choice) leastLoad() float64 {
	if c.least >= 0 {
		return c.least
	}
	c.least = math.Inf(1)
	n, left := len(c.Pool.Replicas), sample
	at := 0
	if n > sample {
		at = c.p.sampled % n
	}
	for i := 0; i < n && left > 0; i++ {
		r := c.Pool.Replicas[at]
		if at++; at == n {
			at = 0
		}
		if c.Pool.Takes(r) {
			c.least = min(c.least, c.View.Load(r))
			left--
		}
	}
	c.p.sampled = at
	return c.least
}
