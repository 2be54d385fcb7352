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

	mu   sync.Mutex     // guards open; nothing is locked under it
	open map[string]int // by host; "" = all
}

func newBoundedListener(l net.Listener, most int, log *slog.Logger) *boundedListener {
	return &boundedListener{
		Listener: l, most: most, log: log, open: make(map[string]int),
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
		host, _, err := net.SplitHostPort(c.RemoteAddr().String())
		if err != nil { // a Unix socket has no hosts
			host = c.RemoteAddr().Network()
		}
		if l.count(host, 1) {
			return &boundedConn{Conn: c, end: sync.OnceFunc(func() { l.count(host, -1) })}, nil
		}
		l.refused.Do(func() {
			l.log.Warn("warmpath: connections are refused: max_connections", "most", l.most, "last", host)
		})
		_ = c.Close()
	}
}

// count counts n connections of a host more, unless there are as many as there may be.
func (l *boundedListener) count(host string, n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > 0 && (l.open[""] >= l.most || l.open[host] >= (l.most+1)/2) {
		return false
	}
	l.open[""] += n
	if l.open[host] += n; l.open[host] == 0 {
		delete(l.open, host)
	}
	return true
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
