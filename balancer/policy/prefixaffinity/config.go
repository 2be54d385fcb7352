package prefixaffinity

import "fmt"

// Name is the policy's name in a config.
const Name = "prefix_cache_affinity"

// What to do with a request whose prefix no replica holds.
const (
	OnMissRendezvous  = "rendezvous"   // the first in the rendezvous order within the bound
	OnMissLeastLoaded = "least_loaded" // the least loaded; many clients then fill every cache with the same prompts
	OnMissSmallest    = "smallest"     // Ray's rule as a whole: see Config.OnMiss
)

// A replica is passed over when its load is above that of the least loaded by more
// than loadSlack tokens, or peerSlack times the mean peer load if that is more, and
// reuseWeight times the tokens that it is expected to have cached. Higher keeps
// prompts with their caches, lower spreads load. The values were found with the
// simulator on the conversation trace; docs/routing-quality.md has what peerSlack
// gives: without it, +25 % mean TTFT where load comes every second.
const (
	loadSlack   = 4000
	peerSlack   = 0.75
	reuseWeight = 3
)

// Config is the policy's config. Its zero value is not valid: begin with
// [DefaultConfig].
type Config struct {
	// MatchRateThreshold is the least part of a prompt, less what is shared, that a
	// replica must hold to be preferred for it; in [0, 1]. Higher spreads load better
	// and loses short matches.
	MatchRateThreshold float64 `json:"match_rate_threshold"`

	// BlockBytes is the block of a text prompt, BlockTokens that of token ids; in
	// [1, 65536]. Best is the engine's own. All clients must use the same, or their
	// orders differ. Smaller blocks match more exactly and cost time and index.
	// Reported caches are used if they come in blocks of BlockTokens, or in
	// superblocks and BlockTokens divides 512, or for text BlockBytes 2,048.
	BlockBytes  int `json:"block_bytes"`
	BlockTokens int `json:"block_tokens"`

	// IndexBytes bounds the memory of the prefix index; at least 1 MiB. Where
	// superblocks are reported, a sixteenth of it, at least 1 MiB, comes on top.
	IndexBytes int64 `json:"index_bytes"`

	// OnMiss is where a request goes whose prefix no replica holds. OnMissSmallest is
	// Ray's rule as a whole: matches count whether or not they are shared, loads do
	// not matter, and on a miss the replicas that were sent the fewest different bytes
	// are preferred; among equals the fewest ongoing requests decide.
	OnMiss string `json:"on_miss"`

	// ImbalancedThreshold turns affinity off, for the fewer ongoing of two at
	// random, while the ongoing requests of the replicas in question differ by
	// more. 0 = never: the load bound, which is per replica, does it better.
	ImbalancedThreshold int `json:"imbalanced_threshold"`

	// StickySessions makes the session the key of the rendezvous order instead of the
	// distinguishing block, for requests that have one.
	StickySessions bool `json:"sticky_sessions"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		MatchRateThreshold: 0.1,
		BlockBytes:         64,
		BlockTokens:        16,
		IndexBytes:         64 << 20,
		OnMiss:             OnMissRendezvous,
	}
}

const (
	maxBlock      = 1 << 16
	minIndexBytes = 1 << 20
)

func (c Config) validate() error {
	refuse := func(field string, value any, want string) error {
		return fmt.Errorf("%s: it is %v, want %s", field, value, want)
	}
	switch {
	case !(c.MatchRateThreshold >= 0 && c.MatchRateThreshold <= 1):
		return refuse("match_rate_threshold", c.MatchRateThreshold, "0 to 1")
	case c.BlockBytes < 1 || c.BlockBytes > maxBlock:
		return refuse("block_bytes", c.BlockBytes, "1 to 65536")
	case c.BlockTokens < 1 || c.BlockTokens > maxBlock:
		return refuse("block_tokens", c.BlockTokens, "1 to 65536")
	case c.IndexBytes < minIndexBytes:
		return refuse("index_bytes", c.IndexBytes, "at least 1048576")
	case c.OnMiss != OnMissRendezvous && c.OnMiss != OnMissLeastLoaded && c.OnMiss != OnMissSmallest:
		return refuse("on_miss", fmt.Sprintf("%q", c.OnMiss), "rendezvous, least_loaded or smallest")
	case c.ImbalancedThreshold < 0:
		return refuse("imbalanced_threshold", c.ImbalancedThreshold, "at least 0 (0 = off)")
	}
	return nil
}
