package server

import (
	"cmp"
	"slices"
	"sync"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// Bounds of the index that is told, in hashes.
const (
	maxLogged = 1 << 17 // changes remembered for who comes back
	maxChunk  = 1 << 15 // in one message
)

// index is the coarse KV index: the superblocks that replicas hold, as their events tell. It is told to watchers as a
// snapshot and then as what changed, once an interval; what came and went in between is no change.
type index struct {
	// mu guards everything. Nothing is locked under it.
	mu    sync.Mutex
	lanes map[laneKey]*lane

	version uint64
	log     []indexChange // of the versions after floor, without gaps
	floor   uint64
	logged  int // hashes in log

	// The snapshot that was made last, as of its version, if log reaches back to it.
	snapshot        []*warmpathv1.IndexUpdate
	snapshotVersion uint64
}

// laneKey is what changes of a replica are told apart by.
type laneKey struct {
	replica string
	rank    int
	tier    policy.Tier
}

// A lane is the superblocks of one rank on one tier.
type lane struct {
	number uint32 // of the replica, under which watchers know it; 0 = they do not
	held   map[uint64]link
	routed bool   // as it was sent prompts, not as its events tell
	order  uint64 // given to a link last
	chain  uint64 // given to a link last

	// What happened since the last flush.
	cleared bool
	stored  map[uint64]bool // held now, and unknown to watchers
	removed map[uint64]bool // held no more, and known to watchers
}

// A link is a superblock held: when it was stored, and with which others, each the prefix of the next.
type link struct{ order, chain uint64 }

// indexChange is what one version changed.
type indexChange struct {
	changes []*warmpathv1.CacheChange // never written again
	hashes  int
}

// newIndex returns an empty index whose versions follow another's, so that nobody takes the one for the other.
func newIndex(after uint64) *index {
	return &index{lanes: make(map[laneKey]*lane), version: after + 1, floor: after + 1}
}

// take enters what a replica's events changed; the changes of blocks that are no superblocks are not looked at. Called by
// one goroutine at a time for each replica.
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

// flush makes a version of what has changed, if anything has. number gives a replica's number, 0 if it is none.
func (x *index) flush(number func(id string) uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.makeVersion(number)
}

func (x *index) makeVersion(number func(id string) uint32) {
	var next indexChange
	for _, k := range x.keys() {
		l, n := x.lanes[k], number(k.replica)
		if n == 0 {
			l.number = 0 // watchers have dropped it with the replica
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

// keys returns the lanes in an order that does not change.
func (x *index) keys() []laneKey {
	all := make([]laneKey, 0, len(x.lanes))
	for k := range x.lanes {
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b laneKey) int {
		return cmp.Or(cmp.Compare(a.replica, b.replica), cmp.Compare(a.rank, b.rank), cmp.Compare(a.tier, b.tier))
	})
	return all
}

func (c *indexChange) add(changes []*warmpathv1.CacheChange) {
	c.changes = append(c.changes, changes...)
	for _, x := range changes {
		c.hashes += 1 + len(x.Removed) + len(x.Stored)
	}
}

// flush returns what watchers have to be told of the lane, and forgets it.
func (l *lane) flush(k laneKey) []*warmpathv1.CacheChange {
	first := l.message(k)
	first.Cleared = l.cleared
	for h := range l.removed {
		first.Removed = append(first.Removed, h)
	}
	slices.Sort(first.Removed)
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
	return &warmpathv1.CacheChange{Replica: l.number, Rank: uint32(k.rank), Routed: l.routed, Tier: warmpathv1.CacheTier(k.tier) + warmpathv1.CacheTier_CACHE_TIER_GPU}
}

// chains puts what is held and among these (nil = all) behind first: a change for each chain, the oldest first.
func (l *lane) chains(k laneKey, first *warmpathv1.CacheChange, among map[uint64]bool) []*warmpathv1.CacheChange {
	var hashes []uint64
	if among == nil {
		for h := range l.held {
			hashes = append(hashes, h)
		}
	} else {
		for h := range among {
			hashes = append(hashes, h)
		}
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

// since returns what has changed for who knows a version, in messages that are to be taken one after the other. number is
// that of flush.
func (x *index) since(version uint64, number func(id string) uint32) []*warmpathv1.IndexUpdate {
	x.mu.Lock()
	defer x.mu.Unlock()
	if version == x.version {
		return nil
	}
	var all []*warmpathv1.IndexUpdate
	if version < x.floor || version > x.version {
		if x.snapshot == nil || x.snapshotVersion < x.floor {
			x.makeVersion(number) // what is held must be what was told
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

// whole is everything that watchers have been told of, in messages of bounded size.
func (x *index) whole() []*warmpathv1.IndexUpdate {
	u := &warmpathv1.IndexUpdate{Snapshot: true}
	var all []*warmpathv1.IndexUpdate
	hashes := 0
	for _, k := range x.keys() {
		l := x.lanes[k]
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

// size returns how many superblocks are held, of all replicas.
func (x *index) size() (n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, l := range x.lanes {
		n += len(l.held)
	}
	return n
}

func (x *index) lastVersion() uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.version
}
