package faultproxy

import (
	"sync"

	"golang.org/x/net/http2"
)

// streams are the open streams of one connection and how many DATA frames the server has sent on each.
type streams struct {
	mu   sync.Mutex // guards what follows; nothing is called under it
	data map[uint32]int
	last uint32 // the highest that the client opened
	shut bool   // the client was sent GOAWAY
}

// fromClient takes note of a frame of the client. It reports whether the frame opens a stream after the client was sent
// GOAWAY: it had not read it yet, and will open that stream elsewhere.
func (s *streams) fromClient(h http2.FrameHeader) (refused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch h.Type {
	case http2.FrameHeaders:
		if h.StreamID <= s.last {
			return false
		}
		s.last = h.StreamID
		if s.shut {
			return true
		}
		s.data[h.StreamID] = 0
	case http2.FrameRSTStream:
		delete(s.data, h.StreamID)
	}
	return false
}

// fromServer takes note of a frame of the server and returns how many DATA frames its stream has had, this
// one included; 0 for others, and where the stream has ended before.
func (s *streams) fromServer(h http2.FrameHeader) (data int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, open := s.data[h.StreamID]
	if !open {
		return 0
	}
	if h.Type == http2.FrameData {
		n++
		s.data[h.StreamID] = n
		data = n
	}
	ends := h.Type == http2.FrameRSTStream ||
		(h.Type == http2.FrameData || h.Type == http2.FrameHeaders) && h.Flags.Has(http2.FlagDataEndStream)
	if ends {
		delete(s.data, h.StreamID)
	}
	return data
}

// end forgets a stream and reports whether it was open.
func (s *streams) end(id uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, open := s.data[id]
	delete(s.data, id)
	return open
}

func (s *streams) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.data)
}

// close lets no more streams be opened, and returns the last that was.
func (s *streams) close() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shut = true
	return s.last
}
