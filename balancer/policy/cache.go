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
	// BlockTokens is the engine's block: the hashes are those of prompts cut in blocks of so many tokens.
	// 0 = not known, in coarse changes only.
	BlockTokens int
	// Coarse means that each hash adds SuperblockTokens tokens to the one before: it is that of the block that ends
	// there. Otherwise each hash adds a block.
	Coarse bool
	// Predicted means that the change follows from the routes of other clients, and not from a
	// report of the replica. Own routes count beside it.
	Predicted bool
	// Cleared means that all of this replica, rank and tier is gone, of the coarse or of
	// the other changes, before what follows.
	Cleared bool
	// Removed are gone, in any order; Stored are there now, each the prefix of the
	// next and, but for superblocks, right before it. Removed comes first.
	Removed, Stored []uint64
}
