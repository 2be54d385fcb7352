package lookaside

import (
	"maps"
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/fleet"
	"github.com/warmpath/warmpath/internal/router"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// caches are the caches of which the Routers have something, without the blocks. It is used with view.mu held.
type caches map[lane]struct{}

// A lane is one cache of one replica.
type lane struct {
	replica string
	rank    int
	tier    policy.Tier
}

// maxRank bounds the data-parallel ranks of a replica.
const maxRank = 1024

// take returns the changes that an update means.
func (c caches) take(u *warmpathv1.IndexUpdate, named map[uint32]replica) []policy.CacheChange {
	var changes []policy.CacheChange
	if u.GetSnapshot() {
		changes = c.clearing()
		clear(c)
	}
	for _, p := range u.GetChanges() {
		r, ok := named[p.GetReplica()]
		if !ok || p.GetRank() >= maxRank || p.GetTier() > policy.Tiers || p.GetBlockTokens() > 1<<20 {
			continue
		}
		change := fleet.CacheChange(r.ID, p)
		c[lane{change.Replica, change.Rank, change.Tier}] = struct{}{}
		changes = append(changes, change)
	}
	return changes
}

// clearing returns the changes that take back all that the Routers have.
func (c caches) clearing() []policy.CacheChange {
	changes := make([]policy.CacheChange, 0, len(c))
	for l := range c {
		changes = append(changes, policy.CacheChange{
			Replica: l.replica, Rank: l.rank, Tier: l.tier, Coarse: true, Cleared: true,
		})
	}
	return changes
}

// forget drops the lanes of replicas that are not in the fleet any more: their members in the policy are gone too.
func (c caches) forget(there map[string]bool) {
	maps.DeleteFunc(c, func(l lane, _ struct{}) bool { return !there[l.replica] })
}

// routes is where the channel sent prompts, while the server that is followed asks for that: the caches of engines that
// publish no KV events are predicted from it. Safe for use by many goroutines.
type routes struct {
	wanted atomic.Bool
	log    router.RouteLog
}

// note is a [router.RouteSink]; it is called for every call.
func (r *routes) note(to *policy.Replica, rank int, superblocks []uint64) {
	if r.wanted.Load() {
		r.log.Add(to, rank, superblocks)
	}
}

// want takes whether the server asks for routes; what was not reported before is dropped.
func (r *routes) want(wanted bool) {
	if r.wanted.Swap(wanted) != wanted {
		r.log.Take()
	}
}

// report returns what is to be sent, nil for nothing. named are the replicas by the server's numbers.
func (r *routes) report(named map[uint32]replica) *warmpathv1.RouteReport {
	all := r.log.Take()
	if len(all) == 0 {
		return nil
	}
	numbers := make(map[string]uint32, len(named))
	for n, rep := range named {
		numbers[rep.ID] = n
	}
	out := new(warmpathv1.RouteReport)
	for _, x := range all {
		if n, ok := numbers[x.Replica]; ok {
			out.Routes = append(out.Routes, &warmpathv1.Route{Replica: n, Rank: uint32(x.Rank), Superblocks: x.Superblocks})
		}
	}
	return out
}
