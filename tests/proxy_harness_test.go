package tests

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// proxy passes connections on to a target that may change, and can cut them.
type proxy struct {
	lis net.Listener
	all sync.WaitGroup

	mu     sync.Mutex // guards what follows
	target string
	conns  []net.Conn
}

func (p *proxy) addr() string { return p.lis.Addr().String() }

func (p *proxy) to(a net.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = a.String()
}

func (p *proxy) pass(from net.Conn) {
	defer from.Close()
	p.mu.Lock()
	to, err := net.Dial("tcp", p.target)
	if err != nil {
		p.mu.Unlock()
		return
	}
	p.conns = append(p.conns, from, to)
	p.mu.Unlock()
	defer to.Close()
	p.all.Go(func() {
		_, _ = io.Copy(to, from)
		to.Close()
	})
	_, _ = io.Copy(from, to)
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

func newProxy(t testing.TB) *proxy {
	p := &proxy{lis: listenLoopback(t)}
	p.all.Go(func() {
		for {
			c, err := p.lis.Accept()
			if err != nil {
				return
			}
			p.all.Go(func() { p.pass(c) })
		}
	})
	t.Cleanup(func() {
		p.lis.Close()
		p.cut()
		p.all.Wait()
	})
	return p
}

func dialProxy(t testing.TB, p *proxy) *grpc.ClientConn {
	conn, err := grpc.NewClient(p.addr(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: time.Millisecond, Multiplier: 2, MaxDelay: 10 * time.Millisecond},
			MinConnectTimeout: 10 * time.Second,
		}))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}
