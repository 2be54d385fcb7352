package tests

import (
	"bytes"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A breaker is a server of bare HTTP/2 frames. Once armed, it breaks its streams as the test specifies. Before, it
// answers every request with UNIMPLEMENTED.
type breaker struct {
	replica // for its address
	armed   atomic.Bool
	how     fault
	got     atomic.Int64 // whole requests, while armed
	seen    atomic.Int64 // before
}

// A fault does something to the stream of a whole request. It returns false to close the
// connection.
type fault func(f *http2.Framer, stream uint32) bool

// reset resets the stream.
func reset(code http2.ErrCode) fault {
	return func(f *http2.Framer, stream uint32) bool { return f.WriteRSTStream(stream, code) == nil }
}

// crash closes the connection as a process that dies does.
func crash(*http2.Framer, uint32) bool { return false }

// endsWith ends the stream with a status.
func endsWith(code string) fault {
	return func(f *http2.Framer, stream uint32) bool {
		var b bytes.Buffer
		enc := hpack.NewEncoder(&b)
		for _, h := range [][2]string{{":status", "200"}, {"content-type", "application/grpc"}, {"grpc-status", code}, {"grpc-message", "says the replica"}} {
			_ = enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
		}
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: b.Bytes(), EndStream: true, EndHeaders: true}) == nil
	}
}

func startBreaker(t testing.TB, how fault) *breaker {
	t.Helper()
	l := listenLoopback(t)
	b := &breaker{how: how}
	b.addr = l.Addr().String()
	var conns sync.Map
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Store(c, nil)
			wg.Go(func() {
				defer c.Close()
				b.serve(c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		conns.Range(func(c, _ any) bool { return c.(net.Conn).Close() != nil || true })
		wg.Wait()
	})
	return b
}

// serve serves one connection.
func (b *breaker) serve(c net.Conn) {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c, preface); err != nil {
		return
	}
	f := http2.NewFramer(c, c)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	health := make(map[uint32]bool) // the streams of grpc.health.v1, which it does not have
	if f.WriteSettings() != nil {
		return
	}
	for {
		fr, err := f.ReadFrame()
		if err != nil {
			return
		}
		switch fr := fr.(type) {
		case *http2.SettingsFrame:
			if !fr.IsAck() {
				_ = f.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !fr.IsAck() {
				_ = f.WritePing(true, fr.Data)
			}
		case *http2.MetaHeadersFrame:
			health[fr.StreamID] = strings.HasPrefix(fr.PseudoValue("path"), "/grpc.health.v1.")
		case *http2.DataFrame:
			if !fr.StreamEnded() {
				continue
			}
			how := endsWith("12")
			switch {
			case health[fr.StreamID]:
			case b.armed.Load():
				how = b.how
				b.got.Add(1)
			default:
				b.seen.Add(1)
			}
			if !how(f, fr.StreamID) {
				return
			}
		}
	}
}
