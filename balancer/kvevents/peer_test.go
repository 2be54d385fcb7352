package kvevents

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/kvevents"
)

// publisher is a PUB and a ROUTER socket on loopback; the test controls what is dropped and how replies look.
type publisher struct {
	t      testing.TB
	lis    [2]net.Listener // PUB, ROUTER
	reply  func(seq, payload []byte) [][]byte
	ended  sync.WaitGroup
	cancel context.CancelFunc
	ctx    context.Context

	mu     sync.Mutex // guards the below
	subs   []*peer
	topics chan string // one for every subscription
	sent   [][]byte
}

func newPublisher(t testing.TB) *publisher {
	p := &publisher{t: t, topics: make(chan string, 100)}
	p.reply = func(seq, payload []byte) [][]byte { return [][]byte{nil, seq, payload} }
	p.ctx, p.cancel = context.WithCancel(context.Background())
	for i, serve := range []func(net.Conn){p.subscriber, p.replayer} {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		p.lis[i] = lis
		p.ended.Go(func() {
			for {
				raw, err := lis.Accept()
				if err != nil {
					return
				}
				p.ended.Go(func() { serve(raw) })
			}
		})
	}
	t.Cleanup(p.stop)
	return p
}

func (p *publisher) stop() {
	p.cancel()
	for _, l := range p.lis {
		l.Close()
	}
	p.ended.Wait()
}

// cut closes the subscribers' connections.
func (p *publisher) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.subs {
		s.close()
	}
	p.subs = nil
}

func (p *publisher) address(i int) string { return p.lis[i].Addr().String() }

func (p *publisher) subscriber(raw net.Conn) {
	c, err := openPeer(p.ctx, raw, "PUB")
	if err != nil {
		return
	}
	p.join(c)
}

func (p *publisher) join(c *peer) {
	defer c.close()
	frames, err := c.receive()
	if err != nil {
		return
	}
	p.mu.Lock()
	p.subs = append(p.subs, c)
	p.mu.Unlock()
	p.topics <- string(frames[0][1:])
	for err == nil {
		_, err = c.receive()
	}
}

func (p *publisher) replayer(raw net.Conn) {
	c, err := openPeer(p.ctx, raw, "ROUTER")
	if err != nil {
		return
	}
	defer c.close()
	frames, err := c.receive()
	if err != nil {
		return
	}
	p.mu.Lock()
	sent := slices.Clone(p.sent)
	p.mu.Unlock()
	for seq := binary.BigEndian.Uint64(frames[1]); seq < uint64(len(sent)); seq++ {
		if c.send(p.reply(binary.BigEndian.AppendUint64(nil, seq), sent[seq])...) != nil {
			return
		}
	}
	_ = c.send(p.reply(endMarker, nil)...)
	_, _ = c.receive() // until it is closed
}

// publish publishes a message, and sends it unless it is dropped.
func (p *publisher) publish(payload []byte, drop bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	seq := binary.BigEndian.AppendUint64(nil, uint64(len(p.sent)))
	p.sent = append(p.sent, payload)
	for _, s := range p.subs {
		if !drop {
			_ = s.send([]byte("kv"), seq, payload)
		}
	}
}

func (p *publisher) frames(frames ...[]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.subs {
		_ = s.send(frames...)
	}
}

// No memory is allocated for a message that is too long.
func TestMessagesAreLimited(t *testing.T) {
	huge := binary.BigEndian.AppendUint64([]byte{longFlag}, 1<<62)
	many := append([]byte{longFlag | moreFlag}, binary.BigEndian.AppendUint64(nil, kvevents.MaxMessage)...)
	for name, c := range map[string]struct {
		bytes []byte
		want  [][]byte
	}{
		"short":       {[]byte{0, 3, 1, 2, 3}, [][]byte{{1, 2, 3}}},
		"two frames":  {[]byte{moreFlag, 0, 0, 1, 9}, [][]byte{{}, {9}}},
		"long":        {[]byte{longFlag, 0, 0, 0, 0, 0, 0, 0, 2, 1, 2}, [][]byte{{1, 2}}},
		"commands":    {[]byte{commandFlag, 1, 7, 0, 1, 9}, [][]byte{{9}}},
		"huge":        {huge, nil},
		"many frames": {slices.Repeat([]byte{moreFlag, 0}, maxFrames+1), nil},
		"in sum":      {slices.Concat(many, make([]byte, kvevents.MaxMessage), []byte{0, 1}), nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := &peer{in: bufio.NewReader(bytes.NewReader(c.bytes))}
			frames, err := p.receive()
			require.Equal(t, c.want, frames)
			require.Equal(t, c.want == nil, errors.Is(err, errTooLong))
		})
	}
}

// An invalid handshake of a peer is an error.
func FuzzHandshake(f *testing.F) {
	f.Add(append(greeting[:64:64], "\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"...))
	f.Add(append(greeting[:64:64], "\x04\x08\x05READY\x0bSo"...))
	f.Fuzz(func(t *testing.T, b []byte) {
		ours, theirs := net.Pipe()
		var wg sync.WaitGroup
		wg.Go(func() {
			defer theirs.Close()
			go func() {
				_, _ = theirs.Write(b)
				theirs.Close()
			}()
			buf := make([]byte, 1024)
			for {
				if _, err := theirs.Read(buf); err != nil {
					return
				}
			}
		})
		if p, err := openPeer(context.Background(), ours, "SUB"); err == nil {
			for err == nil {
				_, err = p.receive()
			}
			p.close()
		}
		wg.Wait()
	})
}
