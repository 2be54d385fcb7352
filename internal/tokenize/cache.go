package tokenize

import (
	"container/list"
	"context"
	"sync"

	"github.com/zeebo/xxh3"
)

// key is the hash of a segment of a text, with what else its tokens depend on.
type key = xxh3.Uint128

// entryOverhead is what an entry costs beside its tokens, in bytes.
const entryOverhead = 200

// entry is what is remembered under a key. It does not change.
type entry struct {
	key    key
	tokens []uint32
}

func (e *entry) size() int64 { return int64(4*cap(e.tokens)) + entryOverhead }

// cache remembers tokens, the least recently used are forgotten first. A budget of
// less than one entry remembers nothing.
type cache struct {
	budget int64

	mu      sync.Mutex // guards the fields below; taken alone
	bytes   int64
	entries map[key]*list.Element
	order   list.List // of *entry, the most recently used first
}

func newCache(budget int64) *cache {
	return &cache{budget: budget, entries: make(map[key]*list.Element)}
}

// get returns what is remembered under a key.
func (c *cache) get(k key) (tokens []uint32, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[k]
	if e == nil {
		return nil, false
	}
	c.order.MoveToFront(e)
	return e.Value.(*entry).tokens, true
}

// put remembers tokens, which may not change any more.
func (c *cache) put(k key, tokens []uint32) {
	e := &entry{k, tokens}
	if e.size() > c.budget {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.entries[k]; old != nil {
		c.drop(old)
	}
	c.entries[k] = c.order.PushFront(e)
	c.bytes += e.size()
	for c.bytes > c.budget {
		c.drop(c.order.Back())
	}
}

func (c *cache) drop(e *list.Element) {
	old := c.order.Remove(e).(*entry)
	delete(c.entries, old.key)
	c.bytes -= old.size()
}

// flights does equal work that is wanted at the same time once. The first goroutine
// does it, since it alone may use the prompt.
type flights struct {
	mu    sync.Mutex // guards the map; taken alone
	under map[key]*flight
}

// flight is work under way. Its results are read after done is closed.
type flight struct {
	done   chan struct{}
	tokens []uint32
	err    error
	gaveUp bool // the time of the caller that did the work was over; others may have some left
}

// do returns what work returns, of this call or of one under way for the same key.
func (f *flights) do(ctx context.Context, k key, work func() ([]uint32, error)) ([]uint32, error) {
	for {
		f.mu.Lock()
		other := f.under[k]
		if other == nil {
			break
		}
		f.mu.Unlock()
		select {
		case <-other.done:
			if !other.gaveUp {
				return other.tokens, other.err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	mine := &flight{done: make(chan struct{})}
	if f.under == nil {
		f.under = make(map[key]*flight)
	}
	f.under[k] = mine
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.under, k)
		f.mu.Unlock()
		close(mine.done)
	}()
	mine.gaveUp = true // unless work returns
	mine.tokens, mine.err = work()
	mine.gaveUp = mine.err != nil && ctx.Err() != nil
	return mine.tokens, mine.err
}
