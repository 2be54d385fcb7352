package tokenize

import (
	"slices"
	"sync"

	"github.com/zeebo/xxh3"
)

// key is the hash of a text, or of how it begins, with what else its tokens depend on.
type key = xxh3.Uint128

// entryOverhead is what an entry costs beside its tokens, in bytes.
const entryOverhead = 160

// entry is what is remembered under a key. It does not change but for its place in
// the list.
type entry struct {
	key        key
	at         int // in the text: up to where the tokens reach
	tokens     []uint32
	prev, next *entry
}

func (e *entry) size() int64 { return int64(4*cap(e.tokens)) + entryOverhead }

// cache remembers tokens, the least recently used are forgotten first. A budget of
// less than one entry remembers nothing.
type cache struct {
	budget int64

	// mu guards the fields below, and the links of entries. Taken alone.
	mu      sync.Mutex
	bytes   int64
	entries map[key]*entry
	ring    entry // sentinel: next is the most recently used
}

func newCache(budget int64) *cache {
	c := &cache{budget: budget, entries: make(map[key]*entry)}
	c.ring.next, c.ring.prev = &c.ring, &c.ring
	return c
}

// get returns what is remembered under the keys, up to the first that is not. The
// first is the most recently used afterwards: without it the others are of no use.
func (c *cache) get(keys ...key) []*entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []*entry
	for _, k := range keys {
		e := c.entries[k]
		if e == nil {
			break
		}
		found = append(found, e)
	}
	for _, e := range slices.Backward(found) {
		e.unlink()
		c.front(e)
	}
	return found
}

// put remembers an entry, which may not change any more.
func (c *cache) put(e *entry) {
	if e.size() > c.budget {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.entries[e.key]; old != nil {
		c.drop(old)
	}
	c.entries[e.key] = e
	c.bytes += e.size()
	c.front(e)
	for c.bytes > c.budget {
		c.drop(c.ring.prev)
	}
}

func (c *cache) drop(e *entry) {
	e.unlink()
	delete(c.entries, e.key)
	c.bytes -= e.size()
}

func (c *cache) front(e *entry) {
	e.prev, e.next = &c.ring, c.ring.next
	e.prev.next, e.next.prev = e, e
}

func (e *entry) unlink() { e.prev.next, e.next.prev = e.next, e.prev }
