package consistenthash

import (
	"fmt"
	"math"
)

// Bounds of [Config].
const (
	maxVirtualNodes = 10_000
	// maxWeight is the largest weight that counts where weighted is set.
	maxWeight = 100
)

// Config are the parameters of consistent_hash.
type Config struct {
	// NumVirtualNodes is the number of points of a replica on the ring, 1 to
	// 10,000. More spread the sessions more evenly (100: within about
	// 10 % of the mean) and cost 12 bytes each.
	NumVirtualNodes int `json:"num_virtual_nodes"`
	// NumFallbackReplicas is how many replicas after the primary may take a
	// session while those before them are full. 0 = the primary only.
	NumFallbackReplicas int `json:"num_fallback_replicas"`
	// MaxLoadFactor bounds the reservations of a replica by this multiple of the mean
	// of the connected ones, rounded up; 0 = no bound, else at least 1. Lower
	// balances better and moves more sessions; 1.25 is usual.
	MaxLoadFactor float64 `json:"max_load_factor"`
	// Weighted multiplies NumVirtualNodes with the replica's weight.
	Weighted bool `json:"weighted"`
}

// DefaultConfig returns the config that an empty one stands for.
func DefaultConfig() Config {
	return Config{NumVirtualNodes: 100, NumFallbackReplicas: 2}
}

func (c Config) validate() error {
	switch {
	case c.NumVirtualNodes < 1 || c.NumVirtualNodes > maxVirtualNodes:
		return fmt.Errorf("num_virtual_nodes: %d is not between 1 and %d", c.NumVirtualNodes, maxVirtualNodes)
	case c.NumFallbackReplicas < 0:
		return fmt.Errorf("num_fallback_replicas: %d is negative", c.NumFallbackReplicas)
	case c.MaxLoadFactor != 0 && !(c.MaxLoadFactor >= 1) || math.IsInf(c.MaxLoadFactor, 1):
		return fmt.Errorf("max_load_factor: %v is neither 0 nor at least 1", c.MaxLoadFactor)
	}
	return nil
}
