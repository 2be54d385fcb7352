package kvevents

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/warmpath/warmpath/internal/kvevents"
)

const (
	openTimeout = 5 * time.Second
	maxFrames   = 64 // of a message

	// Flags of a frame.
	moreFlag    = 1
	longFlag    = 2
	commandFlag = 4
)

// greeting is that of ZMTP 3.0 without security: signature, version, mechanism, and whether it is a server, which
// means nothing here.
var greeting = append([]byte("\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL"), make([]byte, 48)...)

var (
	errGreeting = errors.New("kvevents: the other end does not speak ZMTP 3 without security")
	errReady    = errors.New("kvevents: a broken ZeroMQ handshake")
	errTooLong  = errors.New("kvevents: a ZeroMQ message is too long")
)

// peer is a connection of ZMTP 3.0, the protocol of ZeroMQ. The sockets of libraries are of no use here: they reconnect
// silently, lose what was under way, and make room for whatever length a frame claims to have.
type peer struct {
	net.Conn
	in   *bufio.Reader
	stop func() bool
}

func dialPeer(ctx context.Context, address, socketType string) (*peer, error) {
	d := net.Dialer{Timeout: openTimeout}
	raw, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return openPeer(ctx, raw, socketType)
}

// openPeer shakes hands. The connection closes with the context.
func openPeer(ctx context.Context, raw net.Conn, socketType string) (*peer, error) {
	p := &peer{Conn: raw, in: bufio.NewReader(raw), stop: context.AfterFunc(ctx, func() { raw.Close() })}
	_ = p.SetDeadline(time.Now().Add(openTimeout))
	if err := p.handshake(socketType); err != nil {
		p.close()
		return nil, fmt.Errorf("kvevents: ZeroMQ handshake with %s: %w", raw.RemoteAddr(), err)
	}
	_ = p.SetDeadline(time.Time{})
	return p, nil
}

func (p *peer) close() {
	p.stop()
	p.Close()
}

func (p *peer) handshake(socketType string) error {
	if _, err := p.Write(greeting); err != nil {
		return err
	}
	theirs := make([]byte, len(greeting))
	if _, err := io.ReadFull(p.in, theirs); err != nil {
		return err
	}
	if theirs[0] != greeting[0] || theirs[9]&1 == 0 || theirs[10] < 3 || !bytes.Equal(theirs[12:32], greeting[12:32]) {
		return errGreeting
	}
	ready := append([]byte("\x05READY\x0bSocket-Type\x00\x00\x00"), byte(len(socketType)))
	if err := p.write(commandFlag, append(ready, socketType...)); err != nil {
		return err
	}
	flags, body, err := p.frame(kvevents.MaxMessage)
	if err == nil && (flags&commandFlag == 0 || !bytes.HasPrefix(body, []byte("\x05READY"))) {
		err = errReady
	}
	return err
}

// write writes a frame.
func (p *peer) write(flags byte, body []byte) error {
	frame := []byte{flags, byte(len(body))}
	if len(body) > 255 {
		frame = binary.BigEndian.AppendUint64([]byte{flags | longFlag}, uint64(len(body)))
	}
	_, err := p.Write(append(frame, body...))
	return err
}

// send sends a message.
func (p *peer) send(frames ...[]byte) error {
	for i, f := range frames {
		flags := byte(moreFlag)
		if i == len(frames)-1 {
			flags = 0
		}
		if err := p.write(flags, f); err != nil {
			return err
		}
	}
	return nil
}

// frame reads a frame of at most so many bytes.
func (p *peer) frame(most int) (flags byte, body []byte, err error) {
	var header [9]byte
	if _, err = io.ReadFull(p.in, header[:2]); err != nil {
		return 0, nil, err
	}
	size := uint64(header[1])
	if header[0]&longFlag != 0 {
		if _, err = io.ReadFull(p.in, header[2:]); err != nil {
			return 0, nil, err
		}
		size = binary.BigEndian.Uint64(header[1:])
	}
	if size > uint64(most) {
		return 0, nil, errTooLong
	}
	body = make([]byte, size)
	_, err = io.ReadFull(p.in, body)
	return header[0], body, err
}

// receive returns the frames of the next message. Commands are left out.
func (p *peer) receive() (frames [][]byte, err error) {
	for left := kvevents.MaxMessage; ; {
		flags, body, err := p.frame(left)
		switch {
		case err != nil:
			return nil, err
		case flags&commandFlag != 0:
			continue
		}
		if frames = append(frames, body); flags&moreFlag == 0 {
			return frames, nil
		}
		if left -= len(body); len(frames) == maxFrames {
			return nil, errTooLong
		}
	}
}

// subscribe subscribes to topics that begin so, and calls take without frames, then for every message, until the
// connection breaks or take fails.
func (p *peer) subscribe(topic string, take func(frames [][]byte) error) error {
	defer p.close()
	err := p.send(append([]byte{1}, topic...))
	for frames := [][]byte(nil); err == nil; {
		if err = take(frames); err == nil {
			frames, err = p.receive()
		}
	}
	return err
}
