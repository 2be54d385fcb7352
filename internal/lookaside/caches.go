package lookaside

import (
	"maps"

	"github.com/warmpath/warmpath/balancer/routing"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// caches is what the Routers were told of the replicas' caches: not the blocks, only whose. It is used with Watch.mu held.
type caches struct {
	told map[lane]struct{}
}

// A lane is one cache of one replica.
type lane struct {
	replica string
	rank    int
	tier    routing.Tier
	tokens  int // in a block
}

// maxRank bounds the data-parallel ranks of a replica.
const maxRank = 1024

// take returns the changes that an update means.
func (c *caches) take(u *warmpathv1.IndexUpdate, named map[uint32]Replica) []routing.CacheChange {
	var changes []routing.CacheChange
	if u.GetSnapshot() {
		changes = c.clear()
	}
	for _, p := range u.GetChanges() {
		r, ok := named[p.GetReplica()]
		if !ok || p.GetRank() >= maxRank || int(p.GetTier()) > routing.Tiers || p.GetBlockTokens() > 1<<20 {
			continue
		}
		l := lane{replica: r.ID, rank: int(p.GetRank()), tier: tierOf(p.GetTier()), tokens: int(p.GetBlockTokens())}
		if l.tokens == 0 {
			l.tokens = routing.SuperblockTokens
		}
		if c.told == nil {
			c.told = make(map[lane]struct{})
		}
		c.told[l] = struct{}{}
		change := l.change()
		change.Cleared, change.Removed, change.Stored = p.GetCleared(), p.GetRemoved(), p.GetStored()
		change.Predicted = p.GetRouted()
		changes = append(changes, change)
	}
	return changes
}

// clear forgets all that was told, and returns the changes that take it back.
func (c *caches) clear() []routing.CacheChange {
	changes := c.clearing()
	clear(c.told)
	return changes
}

// clearing returns the changes that take back all that was told.
func (c *caches) clearing() []routing.CacheChange {
	changes := make([]routing.CacheChange, 0, len(c.told))
	for l := range c.told {
		change := l.change()
		change.Cleared = true
		changes = append(changes, change)
	}
	return changes
}

// forget drops the lanes of replicas that are not in the fleet any more: their members in the policy are gone too.
func (c *caches) forget(there map[string]bool) {
	maps.DeleteFunc(c.told, func(l lane, _ struct{}) bool { return !there[l.replica] })
}

func (l lane) change() routing.CacheChange {
	return routing.CacheChange{Replica: l.replica, Rank: l.rank, Tier: l.tier, BlockTokens: l.tokens}
}

func tierOf(t warmpathv1.CacheTier) routing.Tier {
	switch t {
	case warmpathv1.CacheTier_CACHE_TIER_HOST:
		return routing.TierHost
	case warmpathv1.CacheTier_CACHE_TIER_DISK:
		return routing.TierDisk
	}
	return routing.TierGPU
}
