package kvpublish

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"strings"
	"sync"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

// Config is how a log is published over ZeroMQ.
type Config struct {
	// Events is where subscribers connect; the publisher owns it.
	Events net.Listener
	// Replay is where batches are asked for again, or nil; the publisher owns it.
	Replay net.Listener
	// Topic is the first frame.
	Topic string
	// Encoding is how batches are written; empty means Arrays.
	Encoding Encoding
	// Drop selects batches that no subscriber gets, as a network may; nil means none.
	Drop func(seq uint64) bool
}

// Publisher publishes one log over ZeroMQ.
type Publisher struct {
	log  *Log
	c    Config
	ctx  context.Context
	stop context.CancelFunc
	all  sync.WaitGroup
}

// Publish starts a publisher, which runs until Close.
func Publish(l *Log, c Config) *Publisher {
	if c.Encoding == "" {
		c.Encoding = Arrays
	}
	p := &Publisher{log: l, c: c}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.listen(c.Events, zmq4.Pub, p.publish)
	if c.Replay != nil {
		p.listen(c.Replay, zmq4.Router, p.replay)
	}
	return p
}

// Close cuts every connection and waits for its goroutines.
func (p *Publisher) Close() {
	p.stop()
	p.c.Events.Close()
	if p.c.Replay != nil {
		p.c.Replay.Close()
	}
	p.all.Wait()
}

func (p *Publisher) listen(l net.Listener, kind zmq4.SocketType, serve func(*zmq4.Conn)) {
	p.all.Go(func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			p.all.Go(func() { p.open(raw, kind, serve) })
		}
	})
}

// open shakes hands and serves the connection until it breaks.
func (p *Publisher) open(raw net.Conn, kind zmq4.SocketType, serve func(*zmq4.Conn)) {
	defer context.AfterFunc(p.ctx, func() { raw.Close() })()
	defer raw.Close()
	if conn, err := zmq4.Open(raw, null.Security(), kind, nil, true, nil); err == nil {
		serve(conn)
	}
}

// publish sends what comes from now on to one subscriber.
func (p *Publisher) publish(conn *zmq4.Conn) {
	topic, err := subscription(conn)
	if err != nil {
		return
	}
	ctx, end := context.WithCancel(p.ctx)
	defer end()
	p.all.Go(func() { // reads until the connection breaks
		defer end()
		defer conn.Close()
		for err := error(nil); err == nil; {
			_, err = conn.RecvMsg()
		}
	})
	if !strings.HasPrefix(p.c.Topic, topic) {
		<-ctx.Done()
		return
	}
	for b := range p.log.Follow(ctx, p.log.Next()) {
		if (p.c.Drop == nil || !p.c.Drop(b.Seq)) && p.send(conn, []byte(p.c.Topic), b) != nil {
			return
		}
	}
}

// subscription reads up to the first topic that is subscribed to.
func subscription(conn *zmq4.Conn) (topic string, err error) {
	for {
		msg, err := conn.RecvMsg()
		if err != nil {
			return "", err
		}
		if len(msg.Frames) == 1 && len(msg.Frames[0]) > 0 && msg.Frames[0][0] == 1 {
			return string(msg.Frames[0][1:]), nil
		}
	}
}

// send sends a batch behind these frames.
func (p *Publisher) send(conn *zmq4.Conn, first []byte, b *Batch) error {
	raw, err := p.c.Encoding.append(nil, b)
	if err != nil {
		return err
	}
	return conn.SendMsg(zmq4.NewMsgFrom(first, binary.BigEndian.AppendUint64(nil, b.Seq), raw))
}

// replay answers a number with all batches from there on, and an end marker.
func (p *Publisher) replay(conn *zmq4.Conn) {
	for {
		msg, err := conn.RecvMsg()
		if err != nil {
			return
		}
		n := len(msg.Frames)
		if n == 0 || len(msg.Frames[n-1]) != 8 {
			continue
		}
		batches, _, _ := p.log.From(binary.BigEndian.Uint64(msg.Frames[n-1]))
		for i := range batches {
			if p.send(conn, nil, &batches[i]) != nil {
				return
			}
		}
		if conn.SendMsg(zmq4.NewMsgFrom(nil, bytes.Repeat([]byte{0xff}, 8), nil)) != nil {
			return
		}
	}
}
