package policy

// SuperblockTokens is the grain of a coarse index: one hash for every so many
// tokens, the chained hash of the prompt's block that ends there. Text counts
// BytesPerToken bytes as one token.
const SuperblockTokens = 512

// A Tier is where a replica keeps KV blocks, the fastest first.
type Tier uint8

// The tiers.
const (
	TierGPU Tier = iota
	TierHost
	TierDisk
	Tiers = iota // how many there are
)

// A CacheChange is what the KV cache of one replica gained or lost, as its own
// events or a look-aside server report it. Hashes are chained, of blocks hashed as
// package kvindex does, so that equal hash = equal prefix.
type CacheChange struct {
	Replica string // id
	Rank    int    // data-parallel rank; 0 where there are none
	// Tier is the slowest tier that counts: TierHost means blocks on GPU or
	// host. Where a replica has one tier, all its changes are of TierGPU.
	Tier Tier
	// BlockTokens is how many tokens each hash adds to the one before: the engine's
	// block, or SuperblockTokens in a coarse index.
	BlockTokens int
	// Predicted means that the change follows from the routes of other clients, and not from a
	// report of the replica. Own routes count beside it.
	Predicted bool
	// Cleared means that all of this replica, rank, tier and block size is gone, before
	// what follows.
	Cleared bool
	// Removed are gone, in any order; Stored are there now, each the prefix of the
	// next and, but for superblocks, right before it. Removed comes first.
	Removed, Stored []uint64
}
