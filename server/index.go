package server

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// Bounds of the broadcast index, in hashes.
const (
	maxLogged = 1 << 17 // changes kept for clients that reconnect
	maxChunk  = 1 << 15 // in one message
)

// Bounds of the predicted cache of one rank of a replica, in superblocks.
const (
	unknownCache = 2048 // 1 Mi tokens, where the size of the cache is not known
	maxCache     = 1 << 16
)

// maxRanks bounds the data-parallel ranks of a replica.
const maxRanks = 1024

// index is the coarse KV index: the superblocks that replicas hold. Those of a replica that publishes no KV events are
// predicted from the routes of prompts: as many as its cache holds, least recently used out first. Watchers are sent a
// snapshot and then the changes, once an interval; a superblock that comes and goes within one is no change.
type index struct {
	// mu guards everything. Nothing is locked under it.
	mu     sync.Mutex
	lanes  map[laneKey]*lane
	silent map[string]cacheOf // replicas that publish no events, by id

	version uint64
	log     []indexChange // of the versions after floor, without gaps
	floor   uint64
	logged  int // hashes in log

	// The last snapshot, as of its version; in use while log reaches back to it.
	snapshot        []*warmpathv1.IndexUpdate
	snapshotVersion uint64
}

// laneKey is one rank of a replica, and one tier of its cache.
type laneKey struct {
	replica string
	rank    int
	tier    policy.Tier
}

// A cacheOf is the cache of a replica that publishes no events.
type cacheOf struct {
	tokens   int    // its size; 0 = not known
	instance string // of the replica; "" = not known
}

// superblocks is how many of them a rank holds.
func (c cacheOf) superblocks() int {
	if c.tokens <= 0 {
		return unknownCache
	}
	return min(max(c.tokens/policy.SuperblockTokens, 1), maxCache)
}

// A lane is the superblocks of one rank on one tier.
type lane struct {
	number uint32 // of the replica in the broadcast; 0 = not broadcast
	held   map[uint64]link
	routed bool   // predicted from routes, not reported by events
	order  uint64 // given to a link last
	chain  uint64 // given to a link last

	// What happened since the last flush.
	cleared bool
	stored  map[uint64]bool // held now, and not broadcast yet
	removed map[uint64]bool // held no more, and broadcast
}

// A link is a superblock held: when it was stored, and with which others, each the prefix of the next.
type link struct{ order, chain uint64 }

// indexChange is what one version changed.
type indexChange struct {
	changes []*warmpathv1.CacheChange // never written again
	hashes  int
}

// newIndex returns an empty index whose versions follow one.
func newIndex(after uint64) *index {
	return &index{lanes: make(map[laneKey]*lane), version: after + 1, floor: after + 1}
}

// take applies the changes of superblocks; others are ignored. Called by one goroutine at a time for each replica.
func (x *index) take(changes []policy.CacheChange) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range changes {
		if c := &changes[i]; c.BlockTokens == policy.SuperblockTokens {
			l := x.lane(c)
			l.routed = c.Predicted
			l.change(c)
		}
	}
}

func (x *index) lane(c *policy.CacheChange) *lane {
	k := laneKey{c.Replica, c.Rank, c.Tier}
	l := x.lanes[k]
	if l == nil {
		l = &lane{held: make(map[uint64]link), stored: make(map[uint64]bool), removed: make(map[uint64]bool)}
		x.lanes[k] = l
	}
	return l
}

func (l *lane) change(c *policy.CacheChange) {
	if c.Cleared {
		l.cleared = true
		clear(l.held)
		clear(l.stored)
		clear(l.removed)
	}
	for _, h := range c.Removed {
		if _, ok := l.held[h]; !ok {
			continue
		}
		delete(l.held, h)
		if l.stored[h] {
			delete(l.stored, h)
		} else {
			l.removed[h] = true
		}
	}
	l.chain++
	for _, h := range c.Stored {
		if _, ok := l.held[h]; !ok {
			if l.removed[h] {
				delete(l.removed, h)
			} else {
				l.stored[h] = true
			}
		}
		l.order++
		l.held[h] = link{l.order, l.chain}
	}
}

// setSilent sets the replicas that publish no events. It returns the changes that clear the predicted caches of others
// and of earlier instances.
func (x *index) setSilent(caches map[string]cacheOf) (changes []policy.CacheChange) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for k, l := range x.lanes {
		was := x.silent[k.replica].instance
		now, there := caches[k.replica]
		if !l.routed || there && (was == "" || now.instance == "" || was == now.instance) {
			continue
		}
		c := predictedChange(k.replica, k.rank)
		c.Cleared = true
		l.change(&c)
		l.routed = false
		changes = append(changes, c)
	}
	x.silent = caches
	return changes
}

// predicts reports whether routes are of use: a replica publishes no events.
func (x *index) predicts() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.silent) > 0
}

// predict applies the routes of prompts, the oldest first, and returns the changes. Those to replicas with events, or
// to no member, are passed over.
func (x *index) predict(all []router.Route) (changes []policy.CacheChange) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range all {
		cache, ok := x.silent[r.Replica]
		if !ok || r.Rank < 0 || r.Rank >= maxRanks || len(r.Superblocks) == 0 {
			continue
		}
		most := cache.superblocks()
		c := predictedChange(r.Replica, r.Rank)
		l := x.lane(&c)
		l.routed = true
		c.Stored = r.Superblocks[:min(len(r.Superblocks), most)]
		fresh := slices.IndexFunc(c.Stored, func(h uint64) bool { _, held := l.held[h]; return !held })
		l.change(&c)
		if fresh < 0 {
			continue
		}
		c.Stored = c.Stored[fresh:]
		c.Removed = l.oldest(most)
		l.change(&policy.CacheChange{Removed: c.Removed})
		changes = append(changes, c)
	}
	return changes
}

func predictedChange(replica string, rank int) policy.CacheChange {
	return policy.CacheChange{Replica: replica, Rank: rank, BlockTokens: policy.SuperblockTokens, Predicted: true}
}

// oldest returns the superblocks above most, the least recently used first, each before its prefix. They are sorted
// once for many: up to a sixteenth more than most stays.
func (l *lane) oldest(most int) []uint64 {
	if len(l.held) <= most+most/16 {
		return nil
	}
	all := slices.SortedFunc(maps.Keys(l.held), func(a, b uint64) int {
		x, y := l.held[a], l.held[b]
		return cmp.Or(cmp.Compare(x.chain, y.chain), cmp.Compare(y.order, x.order))
	})
	return all[:len(all)-most]
}

// flush makes a version of the changes, if there are any. number gives a replica's number, 0 if it is no member.
func (x *index) flush(number func(id string) uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.makeVersion(number)
}

// makeVersion is flush with mu held.
func (x *index) makeVersion(number func(id string) uint32) {
	var next indexChange
	for k, l := range x.lanes {
		n := number(k.replica)
		if n == 0 {
			l.number = 0 // watchers drop it with the replica
			if len(l.held) == 0 {
				delete(x.lanes, k)
			}
			continue
		}
		if l.number != n {
			l.number, l.cleared = n, true
		}
		next.add(l.flush(k))
	}
	if len(next.changes) == 0 {
		return
	}
	x.version++
	x.log = append(x.log, next)
	x.logged += next.hashes
	for x.logged > maxLogged && len(x.log) > 0 {
		x.logged -= x.log[0].hashes
		x.floor++
		x.log[0] = indexChange{}
		x.log = x.log[1:]
	}
}

func (c *indexChange) add(changes []*warmpathv1.CacheChange) {
	c.changes = append(c.changes, changes...)
	for _, x := range changes {
		c.hashes += 1 + len(x.Removed) + len(x.Stored)
	}
}

// flush returns the changes of the lane since the last flush.
func (l *lane) flush(k laneKey) []*warmpathv1.CacheChange {
	first := l.message(k)
	first.Cleared = l.cleared
	first.Removed = slices.Sorted(maps.Keys(l.removed))
	stored := l.stored
	if l.cleared {
		stored = nil // all that is held
	}
	changes := l.chains(k, first, stored)
	l.cleared = false
	clear(l.stored)
	clear(l.removed)
	return changes
}

func (l *lane) message(k laneKey) *warmpathv1.CacheChange {
	tier := warmpathv1.CacheTier(k.tier) + warmpathv1.CacheTier_CACHE_TIER_GPU
	return &warmpathv1.CacheChange{Replica: l.number, Rank: uint32(k.rank), Routed: l.routed, Tier: tier}
}

// chains appends to first the superblocks held, of these (nil = all): a change for each chain, the oldest first.
func (l *lane) chains(k laneKey, first *warmpathv1.CacheChange, among map[uint64]bool) []*warmpathv1.CacheChange {
	hashes := slices.Collect(maps.Keys(among))
	if among == nil {
		hashes = slices.Collect(maps.Keys(l.held))
	}
	slices.SortFunc(hashes, func(a, b uint64) int { return cmp.Compare(l.held[a].order, l.held[b].order) })
	var changes []*warmpathv1.CacheChange
	c := first
	for i, h := range hashes {
		if i > 0 && l.held[h].chain != l.held[hashes[i-1]].chain {
			changes = append(changes, c)
			c = l.message(k)
		}
		c.Stored = append(c.Stored, h)
	}
	if c.Cleared || len(c.Removed)+len(c.Stored) > 0 {
		changes = append(changes, c)
	}
	return changes
}

// since returns the changes after a version, in messages to be applied in order. number is that of flush.
func (x *index) since(version uint64, number func(id string) uint32) []*warmpathv1.IndexUpdate {
	x.mu.Lock()
	defer x.mu.Unlock()
	if version == x.version {
		return nil
	}
	var all []*warmpathv1.IndexUpdate
	if version < x.floor || version > x.version {
		if x.snapshot == nil || x.snapshotVersion < x.floor {
			x.makeVersion(number) // a snapshot is of a version: nothing may be pending
			x.snapshot, x.snapshotVersion = x.whole(), x.version
		}
		all = append(all, x.snapshot...)
		version = x.snapshotVersion
	}
	u := new(warmpathv1.IndexUpdate)
	hashes := 0
	for at := version + 1; at <= x.version; at++ {
		c := x.log[at-x.floor-1]
		u.Changes = append(u.Changes, c.changes...)
		u.Version = at
		if hashes += c.hashes; hashes >= maxChunk {
			all = append(all, u)
			u, hashes = new(warmpathv1.IndexUpdate), 0
		}
	}
	if u.Version != 0 {
		all = append(all, u)
	}
	return all
}

// whole is a snapshot, in messages of bounded size.
func (x *index) whole() []*warmpathv1.IndexUpdate {
	u := &warmpathv1.IndexUpdate{Snapshot: true}
	var all []*warmpathv1.IndexUpdate
	hashes := 0
	for k, l := range x.lanes {
		if l.number == 0 {
			continue
		}
		for _, c := range l.chains(k, l.message(k), nil) {
			u.Changes = append(u.Changes, c)
			if hashes += 1 + len(c.Stored); hashes >= maxChunk {
				all = append(all, u)
				u, hashes = new(warmpathv1.IndexUpdate), 0
			}
		}
	}
	u.Version = x.version
	return append(all, u)
}

// size returns how many superblocks are held, of all replicas; 0 where there is no index.
func (x *index) size() (n int) {
	if x == nil {
		return 0
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, l := range x.lanes {
		n += len(l.held)
	}
	return n
}
