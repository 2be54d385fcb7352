package faultproxy

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/http2"
)

// queueLength is how many frames of the server may wait for the client.
const queueLength = 256

// A link is one client's connection and its connection to the server. One goroutine reads the client, one the server,
// one writes to the client; each direction ends the link when it is over.
type link struct {
	proxy   *Proxy
	client  net.Conn
	server  net.Conn
	streams streams
	greeted atomic.Bool        // the client has the server's SETTINGS
	toSend  chan frame         // to the client
	orders  chan chan struct{} // for GOAWAY to the client; the writer closes what it gets
	gone    chan struct{}      // closed by cut
	cutOnce sync.Once

	forgot atomic.Bool // the server was taken away behind the client's back

	serverMu sync.Mutex // held while a frame is written to the server
}

// frame is a frame as it came, and when it may be passed on.
type frame struct {
	http2.FrameHeader
	raw   []byte // header and payload
	due   time.Time
	reset bool // to be replaced by the end of its stream
}

func newLink(p *Proxy, client, server net.Conn) *link {
	return &link{
		proxy: p, client: client, server: server, streams: streams{data: map[uint32]int{}},
		toSend: make(chan frame, queueLength), orders: make(chan chan struct{}), gone: make(chan struct{}),
	}
}

// run passes frames until either side is gone.
func (l *link) run() {
	var all sync.WaitGroup
	all.Go(l.fromClient)
	all.Go(l.fromServer)
	all.Go(l.toClient)
	all.Wait()
	l.cut(false)
}

// cut ends the link, hard with TCP resets.
func (l *link) cut(hard bool) {
	l.cutOnce.Do(func() {
		close(l.gone)
		l.greeted.Store(false)
		if hard {
			reset(l.client)
			reset(l.server)
			return
		}
		l.client.Close()
		l.server.Close()
	})
}

// forget closes the server's side only.
func (l *link) forget() {
	l.forgot.Store(true)
	l.greeted.Store(false)
	l.server.Close()
}

// goAway has the writer send GOAWAY, and waits until it is written or the link has ended.
func (l *link) goAway() {
	done := make(chan struct{})
	select {
	case l.orders <- done:
	case <-l.gone:
		return
	}
	select {
	case <-done:
	case <-l.gone:
	}
}

// fromClient passes the client's frames to the server.
func (l *link) fromClient() {
	var preface [len(http2.ClientPreface)]byte
	if _, err := io.ReadFull(l.client, preface[:]); err != nil || string(preface[:]) != http2.ClientPreface {
		l.cut(false)
		return
	}
	if !l.pass() || l.write(preface[:]) != nil {
		l.cut(false)
		return
	}
	var raw, block []byte
	for {
		h, next, err := readFrame(l.client, raw)
		if err != nil {
			l.ended(err)
			return
		}
		raw = next
		if !l.slowly(len(raw)) || !l.pass() {
			return
		}
		headers := h.Type == http2.FrameHeaders || h.Type == http2.FrameContinuation
		if headers { // a block of them goes in one piece
			if block = append(block, raw...); !h.Flags.Has(http2.FlagHeadersEndHeaders) && len(block) < maxHeaders {
				continue
			}
			h.Type = http2.FrameHeaders
			refused := l.streams.fromClient(h)
			err = l.toServer(block)
			block = block[:0]
			if refused {
				l.endAtServer(h.StreamID)
			}
		} else {
			l.streams.fromClient(h)
			err = l.toServer(raw)
		}
		if err != nil {
			l.ended(err)
			return
		}
	}
}

// maxHeaders is where a block of headers is no longer waited for.
const maxHeaders = 1 << 20

// fromServer reads the server's frames and lets them wait for their time.
func (l *link) fromServer() {
	defer close(l.toSend)
	for {
		h, raw, err := readFrame(l.server, nil)
		if err != nil {
			if hard := isReset(err); hard && !l.forgot.Load() {
				l.cut(true)
			}
			return // toClient writes what is left, then closes
		}
		rule := l.proxy.rule.Load()
		if h.Type == http2.FrameSettings && rule.MaxStreams > 0 {
			raw = limitStreams(h, raw, rule.MaxStreams)
		}
		f := frame{FrameHeader: h, raw: raw, due: time.Now().Add(rule.Delay)}
		n := l.streams.fromServer(h)
		f.reset = rule.ResetAfter > 0 && n >= rule.ResetAfter && l.streams.end(h.StreamID)
		if !l.slowly(len(raw)) {
			return
		}
		select {
		case l.toSend <- f:
		case <-l.gone:
			return
		}
	}
}

// toClient writes the server's frames when they are due, and the proxy's own between them, never within a block of
// headers.
func (l *link) toClient() {
	whole := true // no block of headers is under way
	for {
		orders := l.orders
		if !whole {
			orders = nil
		}
		select {
		case f, more := <-l.toSend:
			if !more {
				if l.forgot.Load() {
					<-l.gone // the client must not see it
				}
				l.cut(false)
				return
			}
			if !l.wait(time.Until(f.due)) || !l.pass() || !l.send(f) {
				return
			}
			if f.Type == http2.FrameHeaders || f.Type == http2.FrameContinuation {
				whole = f.Flags.Has(http2.FlagHeadersEndHeaders)
			}
		case done := <-orders:
			ok := l.pass() && l.sendGoAway()
			close(done)
			if !ok {
				return
			}
		case <-l.gone:
			return
		}
	}
}

// send writes a frame of the server to the client.
func (l *link) send(f frame) bool {
	if f.reset && !l.resetStream(f.StreamID) {
		return false
	}
	// A frame of a stream that was just reset goes on too: the client drops it, and counts it in its window.
	if _, err := l.client.Write(f.raw); err != nil {
		l.ended(err)
		return false
	}
	if f.Type == http2.FrameSettings && !f.Flags.Has(http2.FlagSettingsAck) && !l.forgot.Load() {
		l.greeted.Store(true)
	}
	return true
}

// sendGoAway writes GOAWAY to the client.
func (l *link) sendGoAway() bool {
	if err := http2.NewFramer(l.client, nil).WriteGoAway(l.streams.close(), http2.ErrCodeNo, nil); err != nil {
		l.ended(err)
		return false
	}
	l.greeted.Store(false)
	return true
}

// resetStream ends a stream on both sides.
func (l *link) resetStream(id uint32) bool {
	if err := http2.NewFramer(l.client, nil).WriteRSTStream(id, http2.ErrCodeInternal); err != nil {
		l.ended(err)
		return false
	}
	l.endAtServer(id)
	return true
}

// endAtServer resets a stream on the server's side. A server that has gone needs no reset.
func (l *link) endAtServer(id uint32) {
	l.serverMu.Lock()
	defer l.serverMu.Unlock()
	_ = http2.NewFramer(l.server, nil).WriteRSTStream(id, http2.ErrCodeCancel)
}

// toServer writes to the server, if it has not been taken away.
func (l *link) toServer(raw []byte) error {
	if l.forgot.Load() {
		return nil
	}
	err := l.write(raw)
	if l.forgot.Load() {
		return nil
	}
	return err
}

func (l *link) write(raw []byte) error {
	l.serverMu.Lock()
	defer l.serverMu.Unlock()
	_, err := l.server.Write(raw)
	return err
}

// ended cuts the link after an error, as hard as the error was.
func (l *link) ended(err error) { l.cut(isReset(err)) }

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
