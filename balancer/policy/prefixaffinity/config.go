package prefixaffinity

import (
	"cmp"
	"fmt"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/cacheview"
)

// Name is the policy's name in a config.
const Name = "prefix_cache_affinity"

// What to do with a request whose prefix no replica holds.
const (
	OnMissRendezvous  = "rendezvous"   // the first in the rendezvous order within the bound
	OnMissLeastLoaded = "least_loaded" // the least loaded; many clients then fill every cache with the same prompts
	OnMissSmallest    = "smallest"     // Ray's rule as a whole: see Config.OnMiss
)

// A replica is passed over when its load is above that of the least loaded by more
// than loadSlack tokens, or the drift of the peer load if that is more, and
// reuseWeight times the tokens that it is expected to have cached. Higher keeps
// prompts with their caches, lower spreads load. The values were found with the
// simulator on the conversation trace.
const (
	loadSlack   = 4000
	reuseWeight = 3
)

// Config is the policy's config. Its zero value is the default config.
type Config struct {
	// MatchRateThreshold is the least part of a prompt, less what is shared, that a
	// replica must hold to be preferred for it; 0 = 0.1, at most 1, Off = none. Higher spreads load better
	// and loses short matches.
	MatchRateThreshold policy.Limit `json:"match_rate_threshold,omitempty"`

	// BlockTokens is the block of token ids; 0 = 16, at most 65536. That of a text is
	// four bytes for every token of it. Best is the engine's own. All clients must use the
	// same, or their orders differ. Smaller blocks match more exactly and cost time and
	// index. Reported caches are used if they come in blocks of BlockTokens, or in
	// superblocks and BlockTokens divides 512.
	BlockTokens int `json:"block_tokens,omitempty"`

	// IndexBytes bounds the memory of the prefix index; 0 = 64 MiB, at least 1 MiB. Where
	// superblocks are reported, a sixteenth of it, at least 1 MiB, comes on top.
	IndexBytes int64 `json:"index_bytes,omitempty"`

	// OnMiss is where a request goes whose prefix no replica holds; "" = OnMissRendezvous. OnMissSmallest is
	// Ray's rule as a whole: matches count whether or not they are shared, loads do
	// not matter, and on a miss the replicas that were sent the fewest different bytes
	// are preferred; among equals the fewest ongoing requests decide.
	OnMiss string `json:"on_miss,omitempty"`

	// ImbalancedThreshold turns affinity off, for the fewer ongoing of two at
	// random, while the ongoing requests of the replicas in question differ by
	// more. 0 = never: the load bound, which is per replica, does it better.
	ImbalancedThreshold int `json:"imbalanced_threshold,omitempty"`
}

// Name implements [policy.NamedConfig].
func (Config) Name() string { return Name }

// WithDefaults returns the config with every default written out.
func (c Config) WithDefaults() Config {
	c.MatchRateThreshold = cmp.Or(c.MatchRateThreshold, 0.1)
	c.BlockTokens = cmp.Or(c.BlockTokens, 16)
	c.IndexBytes = cmp.Or(c.IndexBytes, 64<<20)
	c.OnMiss = cmp.Or(c.OnMiss, OnMissRendezvous)
	return c
}

// validate checks a config with its defaults.
func (c Config) validate() error {
	refuse := func(field string, value any, want string) error {
		return fmt.Errorf("%s: it is %v, want %s", field, value, want)
	}
	switch {
	case c.MatchRateThreshold != policy.Off && !(c.MatchRateThreshold >= 0 && c.MatchRateThreshold <= 1):
		return refuse("match_rate_threshold", c.MatchRateThreshold, "0 to 1, or off")
	case c.OnMiss != OnMissRendezvous && c.OnMiss != OnMissLeastLoaded && c.OnMiss != OnMissSmallest:
		return refuse("on_miss", fmt.Sprintf("%q", c.OnMiss), "rendezvous, least_loaded or smallest")
	case c.ImbalancedThreshold < 0:
		return refuse("imbalanced_threshold", c.ImbalancedThreshold, "at least 0 (0 = off)")
	}
	return cacheview.CheckSizes(c.BlockTokens, c.IndexBytes)
}
