package faultproxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/http2"

	"github.com/warmpath/warmpath/internal/pause"
)

const (
	// queueLength is how many frames of the server may wait for the client.
	queueLength = 256
	// pieceLength is how many bytes of the client pass at once.
	pieceLength = 16 << 10
)

// A link is one client's connection and its connection to the server. One goroutine reads the client, one the server,
// one writes to the client; each direction ends the link when it is over.
type link struct {
	proxy    *Proxy
	client   net.Conn
	server   net.Conn
	toClient chan piece
	ctx      context.Context // ends with cut
	cancel   context.CancelFunc
	cutOnce  sync.Once
	halfOpen atomic.Bool // the server was taken away without notice to the client
}

// piece is what is to be written to the client, and when; one without bytes is the end of the server's connection.
type piece struct {
	raw     []byte
	due     time.Time
	written chan struct{} // closed then; may be nil
}

func newLink(p *Proxy, client, server net.Conn) *link {
	l := &link{proxy: p, client: client, server: server, toClient: make(chan piece, queueLength)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// run passes on what both sides send until either is gone.
func (l *link) run() {
	var all sync.WaitGroup
	all.Go(l.readClient)
	all.Go(l.readServer)
	all.Go(l.writeClient)
	all.Wait()
}

// cut ends the link, hard with TCP resets.
func (l *link) cut(hard bool) {
	l.cutOnce.Do(func() {
		l.cancel()
		if hard {
			reset(l.client)
			reset(l.server)
			return
		}
		l.client.Close()
		l.server.Close()
	})
}

// loseServer closes the server's side only.
func (l *link) loseServer() {
	l.halfOpen.Store(true)
	l.server.Close()
}

// goAway sends the client GOAWAY, and waits until it is written or the link has ended. As with a server that drains, no
// stream that the client has opened meanwhile is refused.
func (l *link) goAway() {
	var frame bytes.Buffer
	_ = http2.NewFramer(&frame, nil).WriteGoAway(math.MaxInt32, http2.ErrCodeNo, nil) // into memory
	p := piece{raw: frame.Bytes(), written: make(chan struct{})}
	if !l.enqueue(p) {
		return
	}
	select {
	case <-p.written:
	case <-l.ctx.Done():
	}
}

func (l *link) enqueue(p piece) bool {
	select {
	case l.toClient <- p:
		return true
	case <-l.ctx.Done():
		return false
	}
}

// readClient passes what the client sends to the server, if that has not been taken away.
func (l *link) readClient() {
	raw := make([]byte, pieceLength)
	for {
		n, err := l.client.Read(raw)
		if !l.slowly(n) || !l.pass() {
			return
		}
		if n > 0 && !l.halfOpen.Load() {
			if _, failed := l.server.Write(raw[:n]); failed != nil && !l.halfOpen.Load() {
				err = failed
			}
		}
		if err != nil {
			l.cut(isReset(err))
			return
		}
	}
}

// readServer reads what the server sends and lets it wait for its time.
func (l *link) readServer() {
	for {
		raw, err := readFrame(l.server)
		if err != nil {
			if isReset(err) && !l.halfOpen.Load() {
				l.cut(true)
			}
			l.enqueue(piece{}) // writeClient writes what is left first
			return
		}
		due := time.Now().Add(l.proxy.rule.Load().Delay)
		if !l.slowly(len(raw)) || !l.enqueue(piece{raw: raw, due: due}) {
			return
		}
	}
}

// writeClient writes each piece when it is due.
func (l *link) writeClient() {
	for {
		var p piece
		select {
		case p = <-l.toClient:
		case <-l.ctx.Done():
			return
		}
		if p.raw == nil {
			if l.halfOpen.Load() {
				<-l.ctx.Done() // the client must not see it
			}
			l.cut(false)
			return
		}
		if !l.wait(time.Until(p.due)) || !l.pass() {
			return
		}
		if _, err := l.client.Write(p.raw); err != nil {
			l.cut(isReset(err))
			return
		}
		if p.written != nil {
			close(p.written)
		}
	}
}

// pass waits while nothing may pass; it returns false when the link has ended.
func (l *link) pass() bool {
	for {
		rule := l.proxy.rule.Load()
		if !rule.Blackhole {
			return true
		}
		select {
		case <-rule.changed:
		case <-l.ctx.Done():
			return false
		}
	}
}

// slowly waits as long as reading n bytes takes.
func (l *link) slowly(n int) bool {
	rate := l.proxy.rule.Load().BytesPerSecond
	return rate <= 0 || l.wait(time.Duration(n)*time.Second/time.Duration(rate))
}

// wait lets time pass; it returns false when the link has ended.
func (l *link) wait(d time.Duration) bool {
	return d <= 0 || pause.For(l.ctx, d) == nil
}

// readFrame reads a frame, or a whole block of headers, into which no other frame may fall.
func readFrame(r io.Reader) ([]byte, error) {
	var raw bytes.Buffer
	for {
		h, err := http2.ReadFrameHeader(io.TeeReader(r, &raw))
		if err == nil {
			_, err = io.CopyN(&raw, r, int64(h.Length))
		}
		headers := h.Type == http2.FrameHeaders || h.Type == http2.FrameContinuation
		if err != nil || !headers || h.Flags.Has(http2.FlagHeadersEndHeaders) {
			return raw.Bytes(), err
		}
	}
}

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// reset closes a connection so that the peer sees a reset.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // without it the connection is closed all the same
	}
	c.Close()
}
