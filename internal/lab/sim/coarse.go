package sim

import (
	"slices"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/lab/enginesim"
)

// coarse is the look-aside server's index of the fleet: it subscribes to every engine's events and keeps the
// superblocks, which are the chained hashes at every multiple of policy.SuperblockTokens. A superblock is there
// as long as the block that ends it is.
type coarse struct {
	contents []*contents
	changes  []policy.CacheChange
}

// listener is the server's subscription to a machine that is new or starts anew.
func (s *coarse) listener(m *machine) enginesim.Listener {
	c := &contents{machine: m, held: make(map[uint64]struct{}), news: make(map[uint64]int)}
	s.contents = append(s.contents, c)
	return c
}

// forget drops a machine that has left. Its clients have dropped it too.
func (s *coarse) forget(m *machine) {
	s.contents = slices.DeleteFunc(s.contents, func(c *contents) bool { return c.machine == m })
}

// flush returns what has changed since the last time; what came and went in between is no change. Valid until
// the next call.
func (s *coarse) flush() []policy.CacheChange {
	s.changes = s.changes[:0]
	for _, c := range s.contents {
		s.changes = c.flush(s.changes)
	}
	return s.changes
}

// contents are the superblocks of one engine.
type contents struct {
	machine *machine
	held    map[uint64]struct{}

	// news are the changes since the last flush: stored is hash → place in stored + 1, removed is hash → minus
	// the place in removed − 1.
	news    map[uint64]int
	stored  []link
	removed []uint64
	chain   int

	hashes, gone []uint64 // what flush returned
}

// link is a superblock that was stored; those side by side with the same chain follow each other in a prompt.
type link struct {
	hash  uint64
	chain int
}

// KVEvents implements [enginesim.Listener].
func (c *contents) KVEvents(_ time.Duration, events []enginesim.KVEvent) {
	every := policy.SuperblockTokens / c.machine.engine.Config().BlockSize
	for _, e := range events {
		if !e.Stored {
			for _, h := range e.Hashes {
				c.remove(h)
			}
			continue
		}
		c.chain++
		for i := every - 1 - e.First%every; i < len(e.Hashes); i += every {
			c.store(e.Hashes[i])
		}
	}
}

func (c *contents) store(h uint64) {
	c.held[h] = struct{}{}
	if c.news[h] < 0 {
		delete(c.news, h) // for the clients it is still there
		c.chain++
		return
	}
	c.stored = append(c.stored, link{h, c.chain})
	c.news[h] = len(c.stored)
}

func (c *contents) remove(h uint64) {
	if _, ok := c.held[h]; !ok {
		return // no superblock ends with it
	}
	delete(c.held, h)
	if c.news[h] > 0 {
		delete(c.news, h)
		return
	}
	c.removed = append(c.removed, h)
	c.news[h] = -len(c.removed)
}

// flush appends one change for everything removed and the first chain stored, and one for each further chain.
func (c *contents) flush(dst []policy.CacheChange) []policy.CacheChange {
	c.hashes, c.gone = c.hashes[:0], c.gone[:0]
	for i, h := range c.removed {
		if c.news[h] == -(i + 1) {
			c.gone = append(c.gone, h)
		}
	}
	next := policy.CacheChange{Replica: c.machine.id, BlockTokens: policy.SuperblockTokens, Removed: c.gone}
	last := -1 // place of the last one in the chain
	from := 0
	for i, l := range c.stored {
		if c.news[l.hash] != i+1 {
			continue
		}
		if len(c.hashes) > from && (last != i-1 || c.stored[last].chain != l.chain) {
			next.Stored = c.hashes[from:len(c.hashes):len(c.hashes)]
			dst = append(dst, next)
			next.Removed, from = nil, len(c.hashes)
		}
		c.hashes = append(c.hashes, l.hash)
		last = i
	}
	next.Stored = c.hashes[from:]
	if len(next.Stored)+len(next.Removed) > 0 {
		dst = append(dst, next)
	}
	clear(c.news)
	c.stored, c.removed = c.stored[:0], c.removed[:0]
	return dst
}
