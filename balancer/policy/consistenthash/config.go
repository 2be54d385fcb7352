package consistenthash

import (
	"cmp"
	"fmt"
	"math"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Bounds of [Config].
const (
	maxVirtualNodes = 10_000
	// maxWeight is the largest weight that counts where weighted is set.
	maxWeight = 100
)

// Config are the parameters of consistent_hash.
type Config struct {
	// NumVirtualNodes is the number of points of a replica on the ring; 0 = 100, at most
	// 10,000. More spread the sessions more evenly (100: within about
	// 10 % of the mean) and cost 16 bytes each.
	NumVirtualNodes int `json:"num_virtual_nodes,omitempty"`
	// NumFallbackReplicas is how many replicas after the primary may take a
	// session while those before them are full; 0 = 2, Off = the primary only.
	NumFallbackReplicas policy.Limit `json:"num_fallback_replicas,omitempty"`
	// MaxLoadFactor bounds the reservations of a replica by this multiple of the mean
	// of the connected ones, rounded up; 0 = no bound, else at least 1. Lower
	// balances better and moves more sessions; 1.25 is usual.
	MaxLoadFactor float64 `json:"max_load_factor,omitempty"`
	// Weighted multiplies NumVirtualNodes with the replica's weight.
	Weighted bool `json:"weighted,omitempty"`
}

// Name implements [policy.NamedConfig].
func (Config) Name() string { return Name }

// WithDefaults returns the config with every default written out.
func (c Config) WithDefaults() Config {
	c.NumVirtualNodes = cmp.Or(c.NumVirtualNodes, 100)
	c.NumFallbackReplicas = cmp.Or(c.NumFallbackReplicas, 2)
	return c
}

// validate checks a config with its defaults.
func (c Config) validate() error {
	n := c.NumFallbackReplicas
	switch {
	case c.NumVirtualNodes < 1 || c.NumVirtualNodes > maxVirtualNodes:
		return fmt.Errorf("num_virtual_nodes: %d is not between 1 and %d", c.NumVirtualNodes, maxVirtualNodes)
	case n != policy.Off && !(n >= 0 && n < 1<<30 && n == policy.Limit(int(n))):
		return fmt.Errorf("num_fallback_replicas: %v is neither a whole number of at least 0 nor off", n)
	case c.MaxLoadFactor != 0 && !(c.MaxLoadFactor >= 1) || math.IsInf(c.MaxLoadFactor, 1):
		return fmt.Errorf("max_load_factor: %v is neither 0 nor at least 1", c.MaxLoadFactor)
	}
	return nil
}
