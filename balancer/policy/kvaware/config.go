package kvaware

import (
	"fmt"
	"math"
)

// Name is the policy's name in a config.
const Name = "kv_aware"

// Config is the policy's config. Its zero value is not valid: begin with
// [DefaultConfig].
type Config struct {
	// UncachedWeight is what a prompt token counts that the replica would have to
	// compute for this request; at least 0. Higher keeps prompts with their caches,
	// lower spreads load; at 1 caches are given up as the fleet fills.
	UncachedWeight float64 `json:"uncached_weight"`

	// QueuedWeight is what a token of others counts that waits to be computed there;
	// at least 0.
	QueuedWeight float64 `json:"queued_weight"`

	// DecodeWeight is what the channel's request_cost_tokens of every active request
	// count; at least 0.
	DecodeWeight float64 `json:"decode_weight"`

	// GPUCredit, HostCredit and DiskCredit are how much of a cached token on each tier
	// need not be computed; at least 0. More than 1 draws prompts to their caches
	// beyond what they save.
	GPUCredit  float64 `json:"gpu_credit"`
	HostCredit float64 `json:"host_credit"`
	DiskCredit float64 `json:"disk_credit"`

	// A cost counts as equal to the least when it is no more than NearTieTokens above
	// it, or ForeignSlack times the mean load that others are told to have, if that is
	// more; both at least 0. Among equals the rendezvous order decides, which keeps many
	// clients with the same news from all going one way.
	NearTieTokens float64 `json:"near_tie_tokens"`
	ForeignSlack  float64 `json:"foreign_slack"`

	// BlockBytes is the block of a text prompt, BlockTokens that of token ids until
	// an engine tells its own; in [1, 65536]. All clients must use the same.
	BlockBytes  int `json:"block_bytes"`
	BlockTokens int `json:"block_tokens"`

	// IndexBytes bounds the memory of the index; at least 1 MiB. It is taken as it is
	// needed: about 20 bytes for every block that one replica holds, less where several
	// hold the same. Where superblocks are told, a sixteenth of it, at least 1 MiB,
	// comes on top.
	IndexBytes int64 `json:"index_bytes"`

	// KVTokens is taken for the size of a replica's KV cache in tokens, of those that
	// tell neither their contents nor their size; 0 = no bound but IndexBytes. What
	// replicas say they had cached corrects it.
	KVTokens int `json:"kv_tokens"`

	// StickySessions makes the session the key of the rendezvous order instead of the
	// distinguishing block, for requests that have one.
	StickySessions bool `json:"sticky_sessions"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		UncachedWeight: 3,
		QueuedWeight:   1,
		DecodeWeight:   1,
		GPUCredit:      1,
		HostCredit:     0.75,
		DiskCredit:     0.25,
		NearTieTokens:  4000,
		ForeignSlack:   0.75,
		BlockBytes:     64,
		BlockTokens:    16,
		IndexBytes:     1 << 30,
		KVTokens:       1_000_000,
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
	for _, f := range []struct {
		name  string
		value float64
	}{
		{"uncached_weight", c.UncachedWeight},
		{"queued_weight", c.QueuedWeight},
		{"decode_weight", c.DecodeWeight},
		{"gpu_credit", c.GPUCredit},
		{"host_credit", c.HostCredit},
		{"disk_credit", c.DiskCredit},
		{"near_tie_tokens", c.NearTieTokens},
		{"foreign_slack", c.ForeignSlack},
	} {
		if !(f.value >= 0) || math.IsInf(f.value, 1) {
			return refuse(f.name, f.value, "at least 0")
		}
	}
	switch {
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
