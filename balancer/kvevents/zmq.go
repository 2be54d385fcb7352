package kvevents

import (
	"context"
	"encoding/binary"
	"strings"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/warmpath/warmpath/internal/kvevents"
)

func init() {
	kvevents.RegisterZeroMQ(kvevents.Transport{Follow: follow, Decode: decode})
}

// subscriber follows the PUB socket of one rank with two goroutines: one reads the connection into the queue, one
// applies.
type subscriber struct {
	*kvevents.Stream
	kvevents.Socket
	queue *queue
}

// follow subscribes until the context ends.
func follow(ctx context.Context, stream *kvevents.Stream, at kvevents.Socket) {
	s := &subscriber{stream, at, newQueue()}
	var wg sync.WaitGroup
	wg.Go(func() { s.work(ctx) })
	if s.Listen {
		listeners.serve(ctx, s)
	} else {
		s.dial(ctx)
	}
	wg.Wait()
}

func (s *subscriber) dial(ctx context.Context) {
	var b kvevents.Backoff
	for {
		p, err := dialPeer(ctx, s.Address, zmq4.Sub)
		if err == nil {
			b.Reset()
			err = s.read(ctx, p)
		}
		if ctx.Err() != nil {
			return
		}
		s.Failed(err)
		if !b.Wait(ctx) {
			return
		}
	}
}

// read puts what comes into the queue until the connection breaks.
func (s *subscriber) read(ctx context.Context, p *peer) error {
	defer p.close()
	if err := p.send(append([]byte{1}, s.Topic...)); err != nil {
		return err
	}
	if !s.queue.put(ctx, message{opened: true}) {
		return ctx.Err()
	}
	s.Failed(nil)
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

// maxQuiet bounds the time between two questions whether a quiet engine has sent more.
const maxQuiet = time.Minute

// work applies what is in the queue. When a connection was made, and when nothing came for a while, it asks the engine
// whether anything was missed: the loss of the last message shows in no gap.
func (s *subscriber) work(ctx context.Context) {
	f := follower{apply: s.Applier(ctx), clear: s.Lose, count: &kvevents.Followed{}}
	if s.Replay != "" {
		f.replay = (&replayer{s.Replay, s.Replays()}).from
	}
	quiet := s.Quiet()
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-s.queue.items:
			s.queue.took(m)
			s.handle(ctx, &f, m)
			quiet = s.Quiet()
		case <-timer.C:
			f.check(ctx)
			quiet = min(2*quiet, maxQuiet)
		}
		timer.Reset(quiet)
		s.Update(func(st *kvevents.Status) {
			st.Count(f.count)
			st.Queued = len(s.queue.items)
			if st.Connected {
				st.Problem = ""
				if f.err != nil {
					st.Problem = f.err.Error()
				}
			}
		})
	}
}

func (s *subscriber) handle(ctx context.Context, f *follower, m message) {
	if m.opened {
		f.check(ctx)
		return
	}
	seq, payload, ok := published(m.frames, s.Topic)
	if !ok {
		s.Unreadable()
		return
	}
	f.accept(ctx, seq, payload)
	s.Update(func(st *kvevents.Status) { st.Lag = time.Since(m.came) })
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
