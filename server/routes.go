package server

import (
	"container/list"
	"sync"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// Bounds of the predicted cache of one rank of a replica, in superblocks.
const (
	unknownCache = 2048 // 1 Mi tokens, where the size of the cache is not known
	maxCache     = 1 << 16
)

// routes predicts the caches of replicas that publish no KV events: of the prompts sent to a rank as many as its cache
// holds, least recently used out first. The changes are published like those of events, marked as predicted.
type routes struct {
	publish func([]policy.CacheChange) // called with mu held, so that the changes of a replica are in order

	// mu guards what follows. The index's lock and the policy's are taken under it, and it under the deployment's.
	mu       sync.Mutex
	capacity map[string]int    // superblocks of a rank, by id of the replicas that publish no events
	instance map[string]string // of the same replicas; "" = not known
	lanes    map[laneKey]*routedLane
}

// A routedLane is the predicted cache of one rank.
type routedLane struct {
	held   map[uint64]*list.Element
	recent list.List // of hashes, the last used in front, each behind its prefix
}

// A cacheOf is a replica's cache: its size in tokens, 0 = not known, and the replica's instance.
type cacheOf struct {
	tokens   int
	instance string
}

// setFleet sets the replicas that publish no events. The lanes of others, and of earlier instances, are cleared.
func (x *routes) setFleet(caches map[string]cacheOf) {
	x.mu.Lock()
	defer x.mu.Unlock()
	before := x.instance
	x.capacity, x.instance = make(map[string]int, len(caches)), make(map[string]string, len(caches))
	for id, c := range caches {
		x.instance[id] = c.instance
		x.capacity[id] = unknownCache
		if c.tokens > 0 {
			x.capacity[id] = min(max(c.tokens/policy.SuperblockTokens, 1), maxCache)
		}
	}
	var cleared []policy.CacheChange
	for k := range x.lanes {
		_, there := x.capacity[k.replica]
		if was, is := before[k.replica], x.instance[k.replica]; !there || was != "" && is != "" && was != is {
			delete(x.lanes, k)
			c := changeOf(k)
			c.Cleared = true
			cleared = append(cleared, c)
		}
	}
	if cleared != nil {
		x.publish(cleared)
	}
}

// wanted reports whether the routes of clients are used: a replica publishes no events.
func (x *routes) wanted() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.capacity) > 0
}

// take applies routes, the oldest first. Those to replicas with events, or to no member, are passed over.
func (x *routes) take(all []router.Route) {
	x.mu.Lock()
	defer x.mu.Unlock()
	var changes []policy.CacheChange
	for _, r := range all {
		most, ok := x.capacity[r.Replica]
		if !ok || r.Rank < 0 || r.Rank >= maxRanks || len(r.Superblocks) == 0 {
			continue
		}
		k := laneKey{replica: r.Replica, rank: r.Rank}
		c := changeOf(k)
		c.Stored, c.Removed = x.lane(k).take(r.Superblocks[:min(len(r.Superblocks), most)], most)
		if len(c.Stored)+len(c.Removed) > 0 {
			changes = append(changes, c)
		}
	}
	if changes != nil {
		x.publish(changes)
	}
}

// maxRanks bounds the data-parallel ranks of a replica.
const maxRanks = 1024

func changeOf(k laneKey) policy.CacheChange {
	return policy.CacheChange{
		Replica: k.replica, Rank: k.rank, Tier: k.tier, BlockTokens: policy.SuperblockTokens, Predicted: true,
	}
}

// lane returns the lane of a rank. Called with mu held.
func (x *routes) lane(k laneKey) *routedLane {
	l := x.lanes[k]
	if l == nil {
		if x.lanes == nil {
			x.lanes = make(map[laneKey]*routedLane)
		}
		l = &routedLane{held: make(map[uint64]*list.Element)}
		x.lanes[k] = l
	}
	return l
}

// take adds the hashes of a prompt, up to most in all. It returns those that are new, and those that are evicted.
func (l *routedLane) take(hashes []uint64, most int) (stored, removed []uint64) {
	known := 0
	for known < len(hashes) && l.held[hashes[known]] != nil {
		known++
	}
	for i := len(hashes) - 1; i >= 0; i-- { // a prefix is evicted after its continuations
		if at := l.held[hashes[i]]; at != nil {
			l.recent.MoveToFront(at)
		} else {
			l.held[hashes[i]] = l.recent.PushFront(hashes[i])
		}
	}
	for len(l.held) > most {
		last := l.recent.Remove(l.recent.Back()).(uint64)
		delete(l.held, last)
		removed = append(removed, last)
	}
	return hashes[known:], removed
}

// decodeRoutes reads a client's report. numbered gives a replica's id, empty if there is none. A report beyond the
// bounds is refused.
func decodeRoutes(r *warmpathv1.RouteReport, numbered func(uint32) string) ([]router.Route, error) {
	if len(r.GetRoutes()) > router.MaxRoutes {
		return nil, invalid("routes: more than %d", router.MaxRoutes)
	}
	all, hashes := make([]router.Route, 0, len(r.GetRoutes())), 0
	for _, x := range r.GetRoutes() {
		if hashes += len(x.GetSuperblocks()); hashes > router.MaxRouteHashes {
			return nil, invalid("routes: more than %d hashes", router.MaxRouteHashes)
		}
		if id := numbered(x.GetReplica()); id != "" && x.GetRank() < maxRanks {
			all = append(all, router.Route{Replica: id, Rank: int(x.GetRank()), Superblocks: x.GetSuperblocks()})
		}
	}
	return all, nil
}

// wantsRoutes reports whether watchers are to report their routes.
func (h *hosted) wantsRoutes() bool { return h.routes != nil && h.routes.wanted() }

// routed applies a client's report on its routes. Those of principals without trust are ignored: they cannot be
// verified.
func (d *deployment) routed(w *watcher, r *warmpathv1.RouteReport) error {
	if r == nil || !w.principal.trusted() {
		return nil
	}
	d.mu.Lock()
	ids := make(map[uint32]string, len(d.roster.order))
	for _, m := range d.roster.order {
		ids[m.number] = m.ID
	}
	d.mu.Unlock()
	all, err := decodeRoutes(r, func(number uint32) string { return ids[number] })
	if err != nil {
		return err
	}
	if h := d.hosted.Load(); h.routes != nil {
		h.routes.take(all)
	}
	return nil
}
