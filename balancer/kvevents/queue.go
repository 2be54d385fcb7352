package kvevents

import (
	"context"
	"sync/atomic"
	"time"
)

const (
	queueMessages = 1024
	queueBytes    = 32 << 20
)

// message is one event of a connection: that it is there, or one message of the engine.
type message struct {
	opened bool
	frames [][]byte
	size   int
	came   time.Time
}

func newMessage(frames [][]byte) message {
	m := message{frames: frames, came: time.Now()}
	for _, f := range frames {
		m.size += len(f)
	}
	return m
}

// queue is what was received and not applied yet, bounded in messages and bytes. When it is full the connection is not
// read: the engine's socket then drops, which is seen as a gap, and filled. One goroutine puts, one takes.
type queue struct {
	items chan message
	bytes atomic.Int64
	room  chan struct{} // something was taken
}

func newQueue() *queue {
	return &queue{items: make(chan message, queueMessages), room: make(chan struct{}, 1)}
}

// put waits for room; false if the context ends before there is.
func (q *queue) put(ctx context.Context, m message) bool {
	for q.bytes.Load() > queueBytes {
		select {
		case <-q.room:
		case <-ctx.Done():
			return false
		}
	}
	q.bytes.Add(int64(m.size))
	select {
	case q.items <- m:
		return true
	case <-ctx.Done():
		return false
	}
}

// took gives a message's room back.
func (q *queue) took(m message) {
	q.bytes.Add(-int64(m.size))
	select {
	case q.room <- struct{}{}:
	default:
	}
}
