package tests

import (
	"encoding/binary"
	"net"
	"sync"
	"testing"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

// zmqEngine publishes arbitrary bytes, as an engine's PUB socket does.
type zmqEngine struct {
	t   testing.TB
	lis net.Listener
	all sync.WaitGroup

	mu    sync.Mutex // guards what follows
	conns []*zmq4.Conn
	raws  []net.Conn
	next  uint64
}

// newZMQEngine listens for subscribers.
func newZMQEngine(t testing.TB) *zmqEngine {
	e := &zmqEngine{t: t, lis: listenLoopback(t)}
	e.all.Go(func() {
		for {
			raw, err := e.lis.Accept()
			if err != nil {
				return
			}
			e.all.Go(func() { e.take(raw, true) })
		}
	})
	t.Cleanup(e.stop)
	return e
}

// dial connects to a subscriber that listens.
func (e *zmqEngine) dial(address string) {
	e.t.Helper()
	var raw net.Conn
	eventually(e.t, "the subscriber listens", func() (ok bool) {
		var err error
		raw, err = net.Dial("tcp", address)
		return err == nil
	})
	e.all.Go(func() { e.take(raw, false) })
}

// take answers a subscription and reads until the connection ends.
func (e *zmqEngine) take(raw net.Conn, server bool) {
	e.mu.Lock()
	e.raws = append(e.raws, raw)
	e.mu.Unlock()
	c, err := zmq4.Open(raw, null.Security(), zmq4.Pub, nil, server, nil)
	if err != nil {
		return
	}
	if _, err := c.RecvMsg(); err != nil {
		return
	}
	e.mu.Lock()
	e.conns = append(e.conns, c)
	e.mu.Unlock()
	for err == nil {
		_, err = c.RecvMsg()
	}
}

// subscribed waits for this many subscribers.
func (e *zmqEngine) subscribed(n int) {
	e.t.Helper()
	eventually(e.t, "the engine has its subscribers", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.conns) >= n
	})
}

// publish sends a payload under a topic, with the next number.
func (e *zmqEngine) publish(topic string, payload []byte) {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	seq := binary.BigEndian.AppendUint64(nil, e.next)
	e.next++
	for _, c := range e.conns {
		_ = c.SendMsg(zmq4.NewMsgFrom([]byte(topic), seq, payload))
	}
}

func (e *zmqEngine) address() string { return e.lis.Addr().String() }

func (e *zmqEngine) stop() {
	e.lis.Close()
	e.mu.Lock()
	for _, raw := range e.raws {
		raw.Close()
	}
	e.mu.Unlock()
	e.all.Wait()
}
