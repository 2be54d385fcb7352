package kvpublish

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/warmpath/warmpath/lab/enginesim"
)

// Batch is what one pass changed.
type Batch struct {
	// Seq counts from 0.
	Seq uint64
	// At is engine time.
	At time.Duration
	// Events are in their order.
	Events []Event
}

// Event is one change, by the engine's hashes.
type Event struct {
	Stored bool
	Hashes []uint64
	// Parent is that before the first of a store; HasParent is false where that begins a prompt.
	Parent    uint64
	HasParent bool
	// Tokens are those of all blocks stored.
	Tokens []uint32
	// Adapter and CacheSalt are the request's.
	Adapter, CacheSalt string
}

// Log keeps the last batches of one engine. It is an enginesim.Listener, and safe for use by many goroutines.
type Log struct {
	keep int

	mu      sync.Mutex // guards what follows; nothing is called under it
	batches []Batch    // the oldest first
	next    uint64
	more    chan struct{} // closed by the next batch
}

// NewLog returns a log that keeps this many batches; 0 means 10,000, as vLLM does.
func NewLog(keep int) *Log {
	if keep == 0 {
		keep = 10_000
	}
	return &Log{keep: keep, more: make(chan struct{})}
}

// KVEvents implements enginesim.Listener. Blocks of prompts given by their hashes only cannot be published.
func (l *Log) KVEvents(at time.Duration, events []enginesim.KVEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := Batch{Seq: l.next, At: at}
	for _, e := range events {
		if x, ok := eventOf(&e); ok {
			b.Events = append(b.Events, x)
		}
	}
	if len(b.Events) == 0 {
		return
	}
	l.next++
	l.batches = append(l.batches, b)
	if len(l.batches) > l.keep {
		l.batches[0] = Batch{}
		l.batches = l.batches[1:]
	}
	close(l.more)
	l.more = make(chan struct{})
}

// eventOf is an event as it is published; false where its tokens are not known.
func eventOf(e *enginesim.KVEvent) (x Event, ok bool) {
	x.Stored = e.Stored
	for _, h := range e.Hashes {
		x.Hashes = append(x.Hashes, Hash(h))
	}
	if !e.Stored {
		return x, true
	}
	if x.HasParent = e.First > 0; x.HasParent {
		x.Parent = Hash(e.Parent)
	}
	r := e.Seq.Request()
	x.Adapter, x.CacheSalt = r.Adapter, r.CacheSalt
	x.Tokens, ok = e.Tokens()
	return x, ok
}

// BlockSize is how many tokens are in a block that was stored.
func (e *Event) BlockSize() int { return len(e.Tokens) / len(e.Hashes) }

// Hash is the engine's name for the block with this chained hash: one for each.
func Hash(chained uint64) uint64 { return (chained ^ chained>>29) * 0x9e3779b97f4a7c15 }

// From returns the batches that are still there from a number on, the number that comes next, and a channel that is
// closed by it. The slice must not be written.
func (l *Log) From(seq uint64) (batches []Batch, next uint64, more <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := l.next - uint64(len(l.batches))
	if seq < l.next {
		batches = l.batches[max(seq, first)-first:]
	}
	return batches[:len(batches):len(batches)], l.next, l.more
}

// Follow yields the batches from a number on that are still there, and then each that comes, until the context ends.
func (l *Log) Follow(ctx context.Context, seq uint64) iter.Seq[*Batch] {
	return func(yield func(*Batch) bool) {
		for {
			batches, next, more := l.From(seq)
			for i := range batches {
				if !yield(&batches[i]) {
					return
				}
			}
			seq = next
			select {
			case <-more:
			case <-ctx.Done():
				return
			}
		}
	}
}

// Next is the number of the next batch.
func (l *Log) Next() uint64 {
	_, next, _ := l.From(0)
	return next
}
