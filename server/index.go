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
// snapshot and then the changes, once an interval.
type index struct {
	// mu guards everything. Nothing is locked under it.
	mu     sync.Mutex
	lanes  map[laneKey]*lane
	silent map[string]cacheOf // replicas that publish no events, by id

	version uint64
	log     [][]*warmpathv1.CacheChange // of the versions after floor, without gaps; never written again
	floor   uint64
	logged  int // hashes in log

	// The last snapshot, as of its version; in use while log reaches back to it.
	snapshot        []*warmpathv1.IndexUpdate
	snapshotVersion uint64

	// The sizes of the engines' blocks, for watchers that are not sent what caches hold.
	sizes        *warmpathv1.IndexUpdate // nil = to be made anew
	sizesVersion uint64
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
	number uint32 // of the replica in the broadcast; 0 = not broadcast yet
	held   map[uint64]link
	routed bool   // predicted from routes, not reported by events
	block  int    // tokens in a block of the engine; 0 = not known
	order  uint64 // given to a link last
	chain  uint64 // given to a link last

	pending []*warmpathv1.CacheChange // since the last flush
}

// A link is a superblock held: when it was stored, and with which others, each the prefix of the next.
type link struct{ order, chain uint64 }

// newIndex returns an empty index whose versions follow one.
func newIndex(after uint64) *index {
	return &index{lanes: make(map[laneKey]*lane), version: after + 1, floor: after + 1, sizesVersion: after + 1}
}

// take applies the changes of superblocks; others are ignored. Called by one goroutine at a time for each replica.
func (x *index) take(changes []policy.CacheChange) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range changes {
		if c := &changes[i]; c.Coarse {
			k, l := x.lane(c)
			l.routed = c.Predicted
			if block := cmp.Or(c.BlockTokens, l.block); block != l.block {
				l.block = block
				x.resized()
			}
			l.change(k, c)
		}
	}
}

func (x *index) lane(c *policy.CacheChange) (laneKey, *lane) {
	k := laneKey{c.Replica, c.Rank, c.Tier}
	if x.lanes[k] == nil {
		x.lanes[k] = &lane{held: make(map[uint64]link)}
	}
	return k, x.lanes[k]
}

// change applies a change. Superblocks that it stores again count as used.
func (l *lane) change(k laneKey, c *policy.CacheChange) {
	m := l.message(k)
	if m.Cleared = c.Cleared; c.Cleared {
		clear(l.held)
		l.pending = nil
	}
	for _, h := range c.Removed {
		if _, ok := l.held[h]; ok {
			delete(l.held, h)
			m.Removed = append(m.Removed, h)
		}
	}
	l.chain++
	for _, h := range c.Stored {
		if _, ok := l.held[h]; !ok {
			m.Stored = append(m.Stored, h)
		}
		l.order++
		l.held[h] = link{l.order, l.chain}
	}
	if m.Cleared || len(m.Removed)+len(m.Stored) > 0 {
		l.pending = append(l.pending, m)
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
		l.change(k, &c)
		l.routed = false
		changes = append(changes, c)
	}
	x.silent = caches
	return changes
}

// predicts reports whether routes are of use: a replica publishes no events. nil = there is no index.
func (x *index) predicts() bool {
	if x == nil {
		return false
	}
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
		k, l := x.lane(&c)
		l.routed = true
		c.Stored = r.Superblocks[:min(len(r.Superblocks), most)]
		fresh := slices.IndexFunc(c.Stored, func(h uint64) bool { _, held := l.held[h]; return !held })
		l.change(k, &c)
		if fresh < 0 {
			continue
		}
		c.Stored = c.Stored[fresh:]
		c.Removed = l.oldest(most)
		l.change(k, &policy.CacheChange{Removed: c.Removed})
		changes = append(changes, c)
	}
	return changes
}

func predictedChange(replica string, rank int) policy.CacheChange {
	return policy.CacheChange{Replica: replica, Rank: rank, Coarse: true, Predicted: true}
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
	var next []*warmpathv1.CacheChange
	for k, l := range x.lanes {
		switch n := number(k.replica); {
		case n == 0:
			delete(x.lanes, k) // watchers drop it with the replica
		case n != l.number:
			l.number = n
			if l.block != 0 {
				x.resized()
			}
			next = append(next, l.whole(k)...)
		default:
			for _, c := range l.pending {
				c.Replica = n
			}
			next = append(next, l.pending...)
		}
		l.pending = nil
	}
	if len(next) == 0 {
		return
	}
	x.version++
	x.log = append(x.log, next)
	x.logged += sizeOf(next...)
	for x.logged > maxLogged && len(x.log) > 0 {
		x.logged -= sizeOf(x.log[0]...)
		x.floor++
		x.log[0] = nil
		x.log = x.log[1:]
	}
}

// sizeOf is what changes count in the bounds.
func sizeOf(changes ...*warmpathv1.CacheChange) (size int) {
	for _, c := range changes {
		size += 1 + len(c.Removed) + len(c.Stored)
	}
	return size
}

func (l *lane) message(k laneKey) *warmpathv1.CacheChange {
	tier := warmpathv1.CacheTier(k.tier) + warmpathv1.CacheTier_CACHE_TIER_GPU
	return &warmpathv1.CacheChange{
		Replica: l.number, Rank: uint32(k.rank), Routed: l.routed, Tier: tier, BlockTokens: uint32(l.block),
	}
}

// resized notes that the size of an engine's blocks, or the number of its replica, is another. Called with mu held.
func (x *index) resized() {
	x.sizes = nil
	x.sizesVersion++
}

// sizesSince returns the sizes of all engines' blocks and their version, nil if there are none after a version.
func (x *index) sizesSince(version uint64) (*warmpathv1.IndexUpdate, uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if version == x.sizesVersion {
		return nil, version
	}
	if x.sizes == nil {
		x.sizes = new(warmpathv1.IndexUpdate)
		told := make(map[uint32]bool)
		for _, l := range x.lanes {
			if l.number != 0 && l.block != 0 && !told[l.number] {
				told[l.number] = true
				x.sizes.Changes = append(x.sizes.Changes, &warmpathv1.CacheChange{
					Replica: l.number, BlockTokens: uint32(l.block), Routed: true,
				})
			}
		}
	}
	if len(x.sizes.GetChanges()) == 0 {
		return nil, x.sizesVersion
	}
	return x.sizes, x.sizesVersion
}

// whole is all that is held: a change for each chain, the oldest first.
func (l *lane) whole(k laneKey) []*warmpathv1.CacheChange {
	c := l.message(k)
	c.Cleared = true
	all := []*warmpathv1.CacheChange{c}
	hashes := slices.SortedFunc(maps.Keys(l.held), func(a, b uint64) int {
		return cmp.Compare(l.held[a].order, l.held[b].order)
	})
	for i, h := range hashes {
		if i > 0 && l.held[h].chain != l.held[hashes[i-1]].chain {
			c = l.message(k)
			all = append(all, c)
		}
		c.Stored = append(c.Stored, h)
	}
	return all
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
			var whole []*warmpathv1.CacheChange
			for k, l := range x.lanes {
				whole = append(whole, l.whole(k)...)
			}
			x.snapshot, x.snapshotVersion = updates(whole, x.version), x.version
			x.snapshot[0].Snapshot = true
		}
		all, version = slices.Clone(x.snapshot), x.snapshotVersion
	}
	if version < x.version {
		all = append(all, updates(slices.Concat(x.log[version-x.floor:]...), x.version)...)
	}
	return all
}

// updates are changes in messages of bounded size, one at least; the last has the version.
func updates(changes []*warmpathv1.CacheChange, version uint64) (all []*warmpathv1.IndexUpdate) {
	u, size := new(warmpathv1.IndexUpdate), 0
	for _, c := range changes {
		u.Changes = append(u.Changes, c)
		if size += sizeOf(c); size >= maxChunk {
			all = append(all, u)
			u, size = new(warmpathv1.IndexUpdate), 0
		}
	}
	u.Version = version
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
