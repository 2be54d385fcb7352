// Package kvevents is imported for its effect: it makes KV events over ZeroMQ usable, as vLLM and SGLang publish
// them, in channels whose config or fleet has a kv_events that begins with tcp:// or sources:. Events through gRPC
// (grpc:) need no import, and the look-aside server has it.
//
//	import _ "github.com/warmpath/warmpath/balancer/kvevents"
package kvevents

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/warmpath/warmpath/internal/kvevents"
)

const (
	queueMessages = 1024
	queueBytes    = 32 << 20

	// maxQuiet bounds the time between two questions whether a quiet engine has sent more.
	maxQuiet = time.Minute

	replayIdle  = 2 * time.Second
	replayTotal = 2 * time.Minute
)

func init() {
	kvevents.RegisterZeroMQ(followReplica)
}

// message is what comes of a connection: that it is there, without frames, or a message of the engine.
type message struct {
	frames [][]byte
	size   int64
	came   time.Time
}

// subscriber follows the PUB socket of one rank with two goroutines: one reads the connection into the queue, one
// applies.
type subscriber struct {
	*kvevents.Stream
	socket
	ctx context.Context // until it ends

	// queue is what was received and not applied yet, bounded in messages and by room in bytes. When it is full the
	// connection is not read: the engine's socket then drops, which is seen as a gap, and filled.
	queue chan message
	room  *semaphore.Weighted

	newest atomic.Uint64 // where the engine connects: the number of the connection that is read, 0 for none
}

// follow subscribes until the context ends.
func follow(ctx context.Context, stream *kvevents.Stream, at socket) {
	s := &subscriber{
		Stream: stream, socket: at, ctx: ctx,
		queue: make(chan message, queueMessages), room: semaphore.NewWeighted(queueBytes),
	}
	var wg sync.WaitGroup
	wg.Go(func() { s.work() })
	if s.Listen {
		s.listen()
	} else {
		s.dial()
	}
	wg.Wait()
}

// dial connects to the engine, again and again, until the context ends.
func (s *subscriber) dial() {
	for b := new(kvevents.Backoff); ; {
		p, err := dialPeer(s.ctx, s.Address, "SUB")
		if err == nil {
			b.Reset()
			err = p.subscribe(s.Topic, func(frames [][]byte) error {
				if frames == nil {
					s.Failed(nil)
				}
				return s.put(frames)
			})
		}
		if s.ctx.Err() != nil {
			return
		}
		s.Failed(err)
		b.Wait(s.ctx)
	}
}

// put queues a message, or without frames that there is a connection. It waits for room.
func (s *subscriber) put(frames [][]byte) error {
	m := message{frames: frames, came: time.Now()}
	for _, f := range frames {
		m.size += int64(len(f))
	}
	if err := s.room.Acquire(s.ctx, m.size); err != nil {
		return err
	}
	select {
	case s.queue <- m:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// work applies what is in the queue. When a connection was made, and when nothing came for a while, it asks the engine
// whether anything was missed: the loss of the last message shows in no gap.
func (s *subscriber) work() {
	var replay kvevents.Replay
	if s.Replay != "" {
		replay = s.replay
	}
	seq := s.Sequence(s.ctx, decode, replay)
	quiet := s.Quiet
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case m := <-s.queue:
			s.room.Release(m.size)
			s.handle(seq, m)
			quiet = s.Quiet
		case <-timer.C:
			if len(s.queue) == 0 { // else what is there comes first
				seq.Check(s.ctx)
				quiet = min(2*quiet, maxQuiet)
			}
		}
		timer.Reset(quiet)
	}
}

// handle takes a message: topic, sequence number, payload. Some publishers leave the topic out.
func (s *subscriber) handle(seq *kvevents.Sequence, m message) {
	n := len(m.frames)
	switch {
	case n == 0:
		seq.Check(s.ctx)
		return
	case n != 2 && n != 3, len(m.frames[n-2]) != 8, n == 3 && !s.wants(m.frames):
		s.Unreadable()
		return
	}
	seq.Live(s.ctx, binary.BigEndian.Uint64(m.frames[n-2]), m.frames[n-1], m.came)
	s.Update(func(st *kvevents.Status) { st.Lag, st.Queued = time.Since(m.came), len(s.queue) })
}

// wants reports whether a message with a topic is the subscriber's.
func (s *subscriber) wants(frames [][]byte) bool {
	return len(frames) == 3 && strings.HasPrefix(string(frames[0]), s.Topic)
}

var endMarker = bytes.Repeat([]byte{0xff}, 8)

// replay calls each for every message that the engine still has, from the number on. Engines send a delimiter or
// none, and the topic or none, before the number and the payload; the last reply has the number -1 and no payload.
func (s *subscriber) replay(ctx context.Context, from uint64, each func(seq uint64, payload []byte) bool) error {
	ctx, cancel := context.WithTimeout(ctx, replayTotal)
	defer cancel()
	p, err := dialPeer(ctx, s.Replay, "DEALER")
	if err != nil {
		return fmt.Errorf("kvevents: replay: %w", err)
	}
	defer p.close()
	for err = p.send(nil, binary.BigEndian.AppendUint64(nil, from)); err == nil; {
		_ = p.SetDeadline(time.Now().Add(replayIdle))
		var frames [][]byte
		if frames, err = p.receive(); len(frames) < 2 {
			continue
		}
		number, payload := frames[len(frames)-2], frames[len(frames)-1]
		if len(payload) == 0 || bytes.Equal(number, endMarker) ||
			len(number) == 8 && !each(binary.BigEndian.Uint64(number), payload) {
			return nil
		}
	}
	return fmt.Errorf("kvevents: replay: %w", err)
}
