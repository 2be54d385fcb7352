package tokenize

import (
	"context"
	"sync"

	"github.com/zeebo/xxh3"
)

// key is the hash of a segment of a text, with what else its tokens depend on.
type key = xxh3.Uint128

// entryOverhead is what an entry costs beside its tokens, in bytes.
const entryOverhead = 200

// cache remembers tokens in two generations: the younger has what was put or found since it began. When it has half of
// the budget it becomes the older one, and what was in that is forgotten.
type cache struct {
	budget int64

	mu             sync.Mutex // guards the fields below; taken alone
	bytes          int64      // of the younger generation
	younger, older map[key][]uint32
	work           map[key]*work // under way
}

// work for a key ends as done is closed. Calls that wait for it share its error.
type work struct {
	done chan struct{}
	err  error
}

func newCache(budget int64) *cache {
	return &cache{budget: budget, younger: make(map[key][]uint32), work: make(map[key]*work)}
}

// get returns what is remembered under a key.
func (c *cache) get(k key) (tokens []uint32, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if tokens, ok = c.younger[k]; ok {
		return tokens, true
	}
	if tokens, ok = c.older[k]; ok {
		c.add(k, tokens)
	}
	return tokens, ok
}

// put remembers tokens, which may not change any more.
func (c *cache) put(k key, tokens []uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(k, tokens)
}

// add adds to the younger generation what is not in it. Called with mu held.
func (c *cache) add(k key, tokens []uint32) {
	size := int64(4*cap(tokens)) + entryOverhead
	if _, held := c.younger[k]; held || size > c.budget/2 {
		return
	}
	if c.bytes += size; c.bytes > c.budget/2 {
		c.older, c.younger, c.bytes = c.younger, make(map[key][]uint32), size
	}
	c.younger[k] = tokens
}

// enter waits while other goroutines work for the key, until one fails or the context ends. The caller calls leave when
// its own work ends, with the error of it. That is its own alone if its context has ended.
func (c *cache) enter(ctx context.Context, k key) (leave func(error), err error) {
	for {
		c.mu.Lock()
		others := c.work[k]
		if others == nil {
			break
		}
		c.mu.Unlock()
		select {
		case <-others.done:
			if others.err != nil {
				return nil, others.err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	defer c.mu.Unlock()
	mine := &work{done: make(chan struct{})}
	c.work[k] = mine
	return func(err error) {
		if ctx.Err() == nil {
			mine.err = err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.work, k)
		close(mine.done)
	}, nil
}
