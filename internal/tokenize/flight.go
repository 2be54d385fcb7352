package tokenize

import (
	"context"
	"sync"
)

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
