package kvaware

import (
	"fmt"
	"math"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Name is the policy's name in a config.
const Name = "kv_aware"

// The weights of the cost. They were found with the simulator on the conversation trace;
// docs/routing-quality.md has what peerSlack gives: without it, +25 % mean TTFT where
// load comes every second.
const (
	// uncachedWeight is what a prompt token counts that the replica would have to compute
	// for this request. Tokens of others that wait there, and active requests, count 1.
	// Higher keeps prompts with their caches; at 1 caches are given up as the fleet fills.
	uncachedWeight = 3
	// peerSlack times the mean peer load is the least width of a near tie.
	peerSlack = 0.75
	// gpuCredit is how much of a token cached on the GPU need not be computed.
	gpuCredit = 1
)

// credits are how much of a cached token on each tier need not be computed.
var credits = [policy.Tiers]float64{gpuCredit, 0.75, 0.25}

// Config is the policy's config. Its zero value is not valid: begin with
// [DefaultConfig].
type Config struct {
	// NearTieTokens is by how much a cost may be above the least and still counts as
	// equal to it; at least 0, 0 = costs are exact. The width is more where peer load is
	// high. Among equals the rendezvous order decides, which keeps many clients with the
	// same news from all going one way. 0 is best where every engine reports its KV
	// events, the default where none does.
	NearTieTokens float64 `json:"near_tie_tokens"`

	// BlockBytes is the block of a text prompt, BlockTokens that of token ids until
	// an engine reports its own; in [1, 65536]. All clients must use the same.
	BlockBytes  int `json:"block_bytes"`
	BlockTokens int `json:"block_tokens"`

	// IndexBytes bounds the memory of the index; at least 1 MiB. It is taken as it is
	// needed: about 20 bytes for every block that one replica holds, less where several
	// hold the same. Where superblocks are reported, a sixteenth of it, at least 1 MiB,
	// comes on top.
	IndexBytes int64 `json:"index_bytes"`

	// KVTokens is the size of a replica's KV cache in tokens, for replicas that report
	// neither their contents nor their size; 0 = no bound but IndexBytes.
	KVTokens int `json:"kv_tokens"`

	// StickySessions makes the session the key of the rendezvous order instead of the
	// distinguishing block, for requests that have one.
	StickySessions bool `json:"sticky_sessions"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		NearTieTokens: 4000,
		BlockBytes:    64,
		BlockTokens:   16,
		IndexBytes:    1 << 30,
		KVTokens:      1_000_000,
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
	case !(c.NearTieTokens >= 0) || math.IsInf(c.NearTieTokens, 1):
		return refuse("near_tie_tokens", c.NearTieTokens, "at least 0")
	case c.BlockBytes < 1 || c.BlockBytes > maxBlock:
		return refuse("block_bytes", c.BlockBytes, "1 to 65536")
	case c.BlockTokens < 1 || c.BlockTokens > maxBlock:
		return refuse("block_tokens", c.BlockTokens, "1 to 65536")
	case c.IndexBytes < minIndexBytes:
		return refuse("index_bytes", c.IndexBytes, "at least 1048576")
	case c.KVTokens < 0:
		return refuse("kv_tokens", c.KVTokens, "at least 0 (0 = no bound)")
	}
	return nil
}
