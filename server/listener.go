package server

import (
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// boundedListener bounds the connections; one host may have half of them. More are closed at once: if they waited, a
// host with idle connections would shut out the others.
type boundedListener struct {
	net.Listener
	most    int
	log     *slog.Logger
	refused rate.Sometimes // when refusals are logged

	mu    sync.Mutex // guards what follows; nothing is locked under it
	open  int
	hosts map[string]int
}

func newBoundedListener(l net.Listener, most int, log *slog.Logger) *boundedListener {
	return &boundedListener{
		Listener: l, most: most, log: log, hosts: make(map[string]int),
		refused: rate.Sometimes{First: 1, Interval: 10 * time.Second},
	}
}

// Accept implements [net.Listener].
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host := hostOf(c)
		if l.take(host) {
			return &boundedConn{Conn: c, end: sync.OnceFunc(func() { l.give(host) })}, nil
		}
		l.refused.Do(func() {
			l.log.Warn("warmpath: connections are refused: max_connections", "most", l.most, "last", host)
		})
		_ = c.Close()
	}
}

func (l *boundedListener) take(host string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.most || l.hosts[host] >= (l.most+1)/2 {
		return false
	}
	l.open++
	l.hosts[host]++
	return true
}

func (l *boundedListener) give(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.hosts[host]--; l.hosts[host] == 0 {
		delete(l.hosts, host)
	}
}

func hostOf(c net.Conn) string {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return a.IP.String()
	}
	return c.RemoteAddr().Network()
}

// boundedConn gives its place back when it is closed.
type boundedConn struct {
	net.Conn
	end func()
}

// Close implements [net.Conn].
func (c *boundedConn) Close() error {
	defer c.end()
	return c.Conn.Close()
}
