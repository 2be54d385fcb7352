package faultproxy

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A Fault is what is wrong with a server's connections. The zero value is nothing.
type Fault struct {
	// Blackhole lets nothing pass in either direction, without notice: connections are taken, bytes are held.
	// What was held passes once the fault has gone, as TCP's retransmissions would.
	Blackhole bool
	// Delay is how much later the client gets what the server sends.
	Delay time.Duration
	// BytesPerSecond is how fast either side reads what the other sends; 0 means at once. HTTP/2's and TCP's windows
	// fill up behind it.
	BytesPerSecond int
}

// rule is a fault, and the notice of the next one.
type rule struct {
	Fault
	changed chan struct{} // closed by the next Set
}

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
	p.Drop()
	p.running.Wait()
}

// Accepted counts the connections ever taken.
func (p *Proxy) Accepted() int { return int(p.accepted.Load()) }

// Conns counts the connections that have not ended.
func (p *Proxy) Conns() int { return len(p.all()) }

// Drop closes every connection in good order, as a server that exits does.
func (p *Proxy) Drop() { p.each(func(l *link) { l.cut(false) }) }

// Reset breaks every connection with a TCP reset, as a server that crashes does.
func (p *Proxy) Reset() { p.each(func(l *link) { l.cut(true) }) }

// HalfOpen takes the server away from every connection without notice to the client, as a host does that lost
// its power: what the client sends goes nowhere, until it gives the connection up or the proxy drops it.
func (p *Proxy) HalfOpen() { p.each((*link).loseServer) }

// GoAway sends every client GOAWAY: no more streams on its connection; those that are there go on. It returns
// once it is written, but for connections that the client does not read.
func (p *Proxy) GoAway() { p.each((*link).goAway) }

// each does it to the connections of this moment, one after the other.
func (p *Proxy) each(do func(*link)) {
	for _, l := range p.all() {
		do(l)
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
	if p.ctx.Err() != nil { // Close has closed the others already
		return false
	}
	p.links[l] = struct{}{}
	return true
}
