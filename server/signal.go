package server

import "sync"

// A signal wakes all goroutines that wait for it, each time it is given. Safe for use by many goroutines; the zero
// value is ready.
type signal struct {
	mu   sync.Mutex // guards next; nothing is locked under it
	next chan struct{}
}

// wait returns a channel that is closed when the signal is given next. To miss no change, call it before reading the
// state.
func (s *signal) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = make(chan struct{})
	}
	return s.next
}

func (s *signal) give() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != nil {
		close(s.next)
		s.next = nil
	}
}
