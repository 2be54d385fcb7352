package kvevents

import (
	"context"
	"encoding/binary"
	"strings"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
)

// subscriber follows the PUB socket of one rank with two goroutines: one reads the connection into the queue, one
// applies.
type subscriber struct {
	*stream
	address string
	listen  bool   // the engine connects
	engine  string // address of its replica
	topic   string
	quiet   time.Duration
	replay  *replayer // nil = none
	queue   *queue
}

// run subscribes until the context ends.
func (s *subscriber) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { s.work(ctx) })
	if s.listen {
		listeners.serve(ctx, s)
	} else {
		s.dial(ctx)
	}
	wg.Wait()
}

func (s *subscriber) dial(ctx context.Context) {
	var b backoff
	for {
		p, err := dialPeer(ctx, s.address, zmq4.Sub)
		if err == nil {
			b.reset()
			err = s.read(ctx, p)
		}
		if ctx.Err() != nil {
			return
		}
		s.failed(err)
		if !b.wait(ctx) {
			return
		}
	}
}

// read puts what comes into the queue until the connection breaks.
func (s *subscriber) read(ctx context.Context, p *peer) error {
	defer p.close()
	if err := p.send(append([]byte{1}, s.topic...)); err != nil {
		return err
	}
	if !s.queue.put(ctx, message{opened: true}) {
		return ctx.Err()
	}
	s.failed(nil)
	for {
		frames, err := p.receive()
		if err != nil {
			return err
		}
		if !s.queue.put(ctx, newMessage(frames)) {
			return ctx.Err()
		}
	}
}

// maxQuiet bounds the time between two questions whether a quiet engine has said more.
const maxQuiet = time.Minute

// work applies what is in the queue. When a connection was made, and when nothing came for a while, it asks the engine
// whether anything was missed: the loss of the last message shows in no gap.
func (s *subscriber) work(ctx context.Context) {
	f := follower{apply: s.applier(ctx), clear: s.lose, count: &followed{}}
	if s.replay != nil {
		f.replay = s.replay.from
	}
	quiet := s.quiet
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-s.queue.items:
			s.queue.took(m)
			s.handle(ctx, &f, m)
			quiet = s.quiet
		case <-timer.C:
			f.check(ctx)
			quiet = min(2*quiet, maxQuiet)
		}
		timer.Reset(quiet)
		s.update(func(st *Status) {
			st.Gaps, st.Replays, st.ReplayErrors = f.count.Gaps, f.count.Replays, f.count.ReplayErrors
			st.Restarts, st.Clears, st.Queued = f.count.Restarts, f.count.Clears, len(s.queue.items)
			if st.Connected && f.err != nil {
				st.Problem = f.err.Error()
			} else if st.Connected {
				st.Problem = ""
			}
		})
	}
}

func (s *subscriber) handle(ctx context.Context, f *follower, m message) {
	if m.opened {
		f.check(ctx)
		return
	}
	seq, payload, ok := published(m.frames, s.topic)
	if !ok {
		s.unreadable(badFrames)
		return
	}
	f.accept(ctx, seq, payload)
	s.update(func(st *Status) { st.Lag = time.Since(m.came) })
}

// published reads a message: topic, sequence number, payload. Some publishers leave the topic out.
func published(frames [][]byte, topic string) (seq uint64, payload []byte, ok bool) {
	n := len(frames)
	if n != 2 && n != 3 || len(frames[n-2]) != 8 {
		return 0, nil, false
	}
	if n == 3 && !strings.HasPrefix(string(frames[0]), topic) {
		return 0, nil, false
	}
	return binary.BigEndian.Uint64(frames[n-2]), frames[n-1], true
}
