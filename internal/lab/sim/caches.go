package sim

import (
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/lab/enginesim"
	"github.com/warmpath/warmpath/internal/router"
)

// subscribers are the policies that subscribe to the engines' own events where no server does it for them. Other
// policies get what a server sends: they are chosen where there are no events.
var subscribers = map[string]bool{"kv_aware": true}

// Subscribes reports whether a policy needs the engines' KV events, or a server that sends them.
func Subscribes(policyName string) bool { return subscribers[policyName] }

// subscribe brings a client's view of the blocks of a prompt up to date: on every engine those up to the first that is
// not there, since those behind it do not count.
//
// A client looks up nothing but the prompt that it routes, so it gets the blocks of that prompt just before,
// as they are: the result is that of following every event, at a hundredth of the cost for 64 clients.
func (r *run) subscribe(rt *router.Router, prompt []uint64) {
	if len(prompt) == 0 {
		return
	}
	r.changes = r.changes[:0]
	for _, m := range r.machines {
		n := m.engine.Published(prompt)
		change := policy.CacheChange{Replica: m.id, BlockTokens: r.block, Stored: prompt[:n]}
		if n < len(prompt) {
			change.Removed = prompt[n : n+1]
		}
		r.changes = append(r.changes, change)
	}
	rt.CacheChanged(r.changes)
}

// contents are the superblocks of one engine in the look-aside server's index, which subscribes to its events:
// the chained hashes at every multiple of policy.SuperblockTokens. A superblock is there as long as the block that
// ends it is.
type contents struct {
	replica string
	every   int                 // blocks in a superblock
	held    map[uint64]int      // superblocks, and the length of stored when each was stored last
	sent    map[uint64]struct{} // those that the clients have

	// What happened since the last flush. Superblocks side by side with the same chain follow each other in a prompt.
	stored  []link
	removed []uint64
	chain   int
}

type link struct {
	hash  uint64
	chain int
}

func newContents(replica string, blockSize int) *contents {
	return &contents{
		replica: replica, every: policy.SuperblockTokens / blockSize,
		held: make(map[uint64]int), sent: make(map[uint64]struct{}),
	}
}

// KVEvents implements [enginesim.Listener].
func (c *contents) KVEvents(_ time.Duration, events []enginesim.KVEvent) {
	for _, e := range events {
		if !e.Stored {
			for _, h := range e.Hashes {
				if _, ok := c.held[h]; ok {
					delete(c.held, h)
					c.removed = append(c.removed, h)
				}
			}
			continue
		}
		c.chain++
		for i := c.every - 1 - e.First%c.every; i < len(e.Hashes); i += c.every {
			c.stored = append(c.stored, link{e.Hashes[i], c.chain})
			c.held[e.Hashes[i]] = len(c.stored)
		}
	}
}

// flush appends what changed since the last time: one change for everything removed and the first chain stored, and
// one for each further chain. What came and went in between is no change.
func (c *contents) flush(dst []policy.CacheChange) []policy.CacheChange {
	next := policy.CacheChange{Replica: c.replica, BlockTokens: policy.SuperblockTokens}
	for _, h := range c.removed {
		_, sent := c.sent[h]
		if _, held := c.held[h]; sent && !held {
			delete(c.sent, h)
			next.Removed = append(next.Removed, h)
		}
	}
	last := -1 // place of the last one in the chain
	for i, l := range c.stored {
		if _, sent := c.sent[l.hash]; sent || c.held[l.hash] != i+1 {
			continue
		}
		if len(next.Stored) > 0 && (last != i-1 || c.stored[last].chain != l.chain) {
			dst = append(dst, next)
			next.Removed, next.Stored = nil, nil
		}
		c.sent[l.hash] = struct{}{}
		next.Stored = append(next.Stored, l.hash)
		last = i
	}
	if len(next.Stored)+len(next.Removed) > 0 {
		dst = append(dst, next)
	}
	c.stored, c.removed = c.stored[:0], c.removed[:0]
	return dst
}
