package client

import (
	"context"
	"sync"
)

// lifetime is the context of a stream whose own context never ends, as
// context.Background does not: what context.WithCancel would make of it, at half
// the price for the one child that gRPC derives. It stands inside its core.
type lifetime struct {
	context.Context
	done chan struct{}

	mu    sync.Mutex // guards the two below; nothing is called under it
	ended bool
	after func() // of the first child
}

func (l *lifetime) start(parent context.Context) {
	l.Context, l.done = parent, make(chan struct{})
}

// Done implements [context.Context].
func (l *lifetime) Done() <-chan struct{} { return l.done }

// Err implements [context.Context].
func (l *lifetime) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return context.Canceled
	}
	return nil
}

// AfterFunc is what package context looks for in a parent that is not its own: a
// child that it can tell needs no goroutine that waits.
func (l *lifetime) AfterFunc(f func()) (stop func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended && l.after == nil {
		l.after = f
		return l.forget
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		select {
		case <-l.done:
			f()
		case <-ctx.Done():
		}
	}()
	return func() bool {
		cancel()
		return true
	}
}

func (l *lifetime) forget() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.after != nil
	l.after = nil
	return was
}

func (l *lifetime) cancel() {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return
	}
	l.ended = true
	f := l.after
	l.after = nil
	l.mu.Unlock()
	close(l.done)
	if f != nil {
		f()
	}
}
