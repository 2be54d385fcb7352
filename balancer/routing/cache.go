package routing

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
// events or a look-aside server tell it. Hashes are chained, of blocks hashed as
// package kvindex does, so that equal hash = equal prefix.
type CacheChange struct {
	Replica string // id
	Rank    int    // data-parallel rank; 0 where there are none
	// Tier is the slowest tier that counts: TierHost tells of blocks on GPU or
	// host. Where a replica has one tier, all its changes are of TierGPU.
	Tier Tier
	// BlockTokens is how many tokens each hash adds to the one before: the engine's
	// block, or SuperblockTokens in a coarse index.
	BlockTokens int
	// Predicted says that this is not what the replica told, but what others routed to it:
	// one's own routes count beside it as they would without it.
	Predicted bool
	// Cleared says that all of this replica, rank, tier and grain is gone, before
	// what follows.
	Cleared bool
	// Removed are gone, in any order; Stored are there now, each the prefix of the
	// next and, but for superblocks, right before it. Removed comes first.
	Removed, Stored []uint64
}

// A CacheObserver is a Policy that can use what is known of the replicas' caches
// beyond its own routes. CacheChanged is called outside the Router's lock, in the
// order of the changes of each replica, concurrently with everything else. It must
// not keep the slices.
type CacheObserver interface {
	CacheChanged([]CacheChange)
}

// CacheChanged tells the policy of changes of the replicas' caches; nothing, if it
// is no [CacheObserver] or the Router is closed. Ids that are not in the fleet are
// ignored by the policy. One goroutine at a time per replica calls it.
func (r *Router) CacheChanged(changes []CacheChange) {
	if !r.ObservesCache() || !r.enter() {
		return
	}
	defer r.leave()
	if r.cacheObs != nil {
		r.cacheObs.CacheChanged(changes)
	}
	if s := r.shadow; s != nil && s.cacheObs != nil {
		s.cacheObs.CacheChanged(changes)
	}
}

// ObservesCache reports whether the policy or its shadow is a [CacheObserver]: whether
// CacheChanged does anything.
func (r *Router) ObservesCache() bool {
	return r.cacheObs != nil || r.shadow != nil && r.shadow.cacheObs != nil
}
