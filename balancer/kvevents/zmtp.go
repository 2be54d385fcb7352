package kvevents

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"

	"github.com/warmpath/warmpath/internal/kvevents"
)

const openTimeout = 5 * time.Second

var errTooLong = errors.New("kvevents: a ZeroMQ message is too long")

// peer is a ZeroMQ connection. The library's sockets are not used, only its protocol: they reconnect silently,
// lose what was under way, and leave goroutines behind.
type peer struct {
	conn *zmq4.Conn
	raw  net.Conn
	stop func() bool

	opened time.Time
}

func dialPeer(ctx context.Context, address string, kind zmq4.SocketType) (*peer, error) {
	d := net.Dialer{Timeout: openTimeout}
	raw, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return openPeer(ctx, raw, kind, false)
}

// openPeer shakes hands. The connection closes with the context.
func openPeer(ctx context.Context, raw net.Conn, kind zmq4.SocketType, server bool) (*peer, error) {
	p := &peer{raw: raw, opened: time.Now(), stop: context.AfterFunc(ctx, func() { raw.Close() })}
	_ = raw.SetDeadline(time.Now().Add(openTimeout))
	err := guarded(func() (err error) {
		p.conn, err = zmq4.Open(&limited{Conn: raw, left: greetingBytes}, null.Security(), kind, nil, server, nil)
		return err
	})
	if err != nil {
		p.close()
		return nil, fmt.Errorf("kvevents: ZeroMQ handshake with %s: %w", raw.RemoteAddr(), err)
	}
	_ = raw.SetDeadline(time.Time{})
	return p, nil
}

func (p *peer) close() {
	p.stop()
	p.raw.Close()
}

func (p *peer) send(frames ...[]byte) error {
	return p.conn.SendMsg(zmq4.NewMsgFrom(frames...))
}

// receive returns the frames of the next message.
func (p *peer) receive() (frames [][]byte, err error) {
	for {
		var msg zmq4.Msg
		err := guarded(func() (err error) {
			msg, err = p.conn.RecvMsg()
			return err
		})
		if err != nil {
			return nil, err
		}
		if msg.Type == zmq4.UsrMsg {
			return msg.Frames, nil
		}
	}
}

// guarded turns a panic into an error: the library's parser of commands trusts their lengths.
func guarded(do func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("kvevents: broken ZeroMQ command: %v", r)
		}
	}()
	return do()
}

// limited ends a connection before a message that is too long is read: the library makes room for whatever length a
// header has. It follows the frames of what passes.
type limited struct {
	net.Conn
	left   uint64 // bytes of the greeting, or of a frame's body, that are still to come
	header []byte // of a frame, as far as it came
	total  uint64 // bytes of the message so far
	frames int
	failed bool
}

const (
	greetingBytes = 64
	maxFrames     = 64
	moreFlag      = 1
	longFlag      = 2
)

// Read implements net.Conn.
func (l *limited) Read(p []byte) (int, error) {
	if l.failed {
		return 0, errTooLong
	}
	n, err := l.Conn.Read(p)
	if !l.follow(p[:n]) {
		l.failed = true
		return 0, errTooLong
	}
	return n, err
}

func (l *limited) follow(b []byte) bool {
	for len(b) > 0 {
		if skip := min(l.left, uint64(len(b))); skip > 0 {
			l.left -= skip
			b = b[skip:]
			continue
		}
		l.header = append(l.header, b[0])
		b = b[1:]
		if size, ok := frameSize(l.header); ok && !l.frame(l.header[0], size) {
			return false
		}
	}
	return true
}

// frame takes note of a frame's header; false if the message becomes too long with it.
func (l *limited) frame(flags byte, size uint64) bool {
	l.total += size
	l.frames++
	if size > kvevents.MaxMessage || l.total > kvevents.MaxMessage || l.frames > maxFrames {
		return false
	}
	l.left, l.header = size, l.header[:0]
	if flags&moreFlag == 0 {
		l.total, l.frames = 0, 0
	}
	return true
}

// frameSize is the length of a frame's body, once its header is complete.
func frameSize(header []byte) (uint64, bool) {
	switch {
	case header[0]&longFlag == 0 && len(header) == 2:
		return uint64(header[1]), true
	case header[0]&longFlag != 0 && len(header) == 9:
		return binary.BigEndian.Uint64(header[1:]), true
	}
	return 0, false
}
