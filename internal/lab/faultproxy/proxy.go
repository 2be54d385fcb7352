package faultproxy

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
)

// A Proxy is one address in front of one server. Its methods are safe for concurrent use.
type Proxy struct {
	lis      net.Listener
	rule     atomic.Pointer[rule]
	accepted atomic.Int64
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	running  sync.WaitGroup

	mu     sync.Mutex // guards what follows; nothing is called under it
	server string
	links  map[*link]struct{}
	closed bool
}

// Listen starts a proxy at a free port of loopback in front of the server, host:port, which need not be there yet. The
// caller closes it.
func Listen(ctx context.Context, server string) (*Proxy, error) {
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("faultproxy: %w", err)
	}
	p := &Proxy{lis: lis, server: server, links: map[*link]struct{}{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.rule.Store(&rule{changed: make(chan struct{})})
	p.running.Go(p.accept)
	return p, nil
}

// Addr is where clients connect to, host:port.
func (p *Proxy) Addr() string { return p.lis.Addr().String() }

// SetServer sets where new connections lead, host:port. Those that are there stay with the server that they have.
func (p *Proxy) SetServer(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = addr
}

// Set replaces the fault.
func (p *Proxy) Set(f Fault) {
	old := p.rule.Swap(&rule{Fault: f, changed: make(chan struct{})})
	close(old.changed)
}

// Close ends the proxy and its connections, and waits for them.
func (p *Proxy) Close() {
	p.cancel()
	p.lis.Close()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	for _, l := range p.all() {
		l.cut(false)
	}
	p.running.Wait()
}

// Accepted counts the connections ever taken.
func (p *Proxy) Accepted() int { return int(p.accepted.Load()) }

// Conns counts the connections over which the server has greeted the client, less those that have ended.
func (p *Proxy) Conns() (n int) {
	for _, l := range p.all() {
		if l.greeted.Load() {
			n++
		}
	}
	return n
}

// Streams counts the streams that are open.
func (p *Proxy) Streams() (n int) {
	for _, l := range p.all() {
		n += l.streams.count()
	}
	return n
}

// Drop closes every connection in good order, as a server that exits does.
func (p *Proxy) Drop() {
	for _, l := range p.all() {
		l.cut(false)
	}
}

// Reset breaks every connection with a TCP reset, as a server that crashes does.
func (p *Proxy) Reset() {
	for _, l := range p.all() {
		l.cut(true)
	}
}

// HalfOpen takes the server away from every connection without notice to the client, as a host does that lost
// its power: what the client sends goes nowhere, until it gives the connection up or the proxy drops it.
func (p *Proxy) HalfOpen() {
	for _, l := range p.all() {
		l.forget()
	}
}

// GoAway sends every client GOAWAY: no more streams on its connection; those that the server has seen go on. It returns
// once it is written, but for connections that the client does not read.
func (p *Proxy) GoAway() {
	for _, l := range p.all() {
		l.goAway()
	}
}

// all are the connections of this moment.
func (p *Proxy) all() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.links))
}

func (p *Proxy) accept() {
	for {
		client, err := p.lis.Accept()
		if err != nil {
			return // closed
		}
		p.accepted.Add(1)
		p.running.Go(func() { p.serve(client) })
	}
}

// serve connects a client to the server and passes frames until either side has gone.
func (p *Proxy) serve(client net.Conn) {
	p.mu.Lock()
	addr := p.server
	p.mu.Unlock()
	if p.rule.Load().Refuse {
		reset(client)
		return
	}
	server, err := new(net.Dialer).DialContext(p.ctx, "tcp", addr)
	if err != nil {
		reset(client)
		return
	}
	l := newLink(p, client, server)
	if !p.enter(l) {
		l.cut(false)
		return
	}
	l.run()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

func (p *Proxy) enter(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.links[l] = struct{}{}
	}
	return !p.closed
}

// reset closes a connection so that the peer sees a reset.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // without it the connection is closed all the same
	}
	c.Close()
}
