package router

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
)

// CloseTimeout is how long Router.Close waits for the policy at most.
const CloseTimeout = time.Second

// A gate closes what a Router was given once, after the calls of it that are under way. The zero value has nothing to
// close.
type gate struct {
	closer io.Closer // nil = none

	// inside is held for reading while a policy is called outside the Router's mutex, and for writing while closed is
	// set. It is never taken with the Router's mutex held.
	inside sync.RWMutex
	closed bool
}

// enter reports whether the policy may still be called, until leave.
func (g *gate) enter() bool {
	if g.closer == nil {
		return true
	}
	if !g.inside.TryRLock() { // it is about to be closed
		return false
	}
	if g.closed {
		g.inside.RUnlock()
		return false
	}
	return true
}

func (g *gate) leave() {
	if g.closer != nil {
		g.inside.RUnlock()
	}
}

// close closes, and waits up to CloseTimeout.
func (g *gate) close() error {
	if g.closer == nil {
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- g.closeNow() }()
	late := time.NewTimer(CloseTimeout)
	defer late.Stop()
	select {
	case err := <-done:
		return err
	case <-late.C:
		return fmt.Errorf("router: closing the policy takes longer than %v", CloseTimeout)
	}
}

// closeNow waits for the calls that are under way; later ones are not made.
func (g *gate) closeNow() error {
	g.inside.Lock()
	g.closed = true
	g.inside.Unlock()
	if err := g.closer.Close(); err != nil {
		return fmt.Errorf("router: closing the policy: %w", err)
	}
	return nil
}

// closers closes what a Router was given.
type closers []func() error

func (c closers) Close() (err error) {
	for _, x := range c {
		err = errors.Join(err, x())
	}
	return err
}

// closerOf returns what closes the policies and the tokenizer, nil where none needs it.
func closerOf(o Options) io.Closer {
	var all closers
	for _, p := range []policy.Policy{o.Policy, o.Plain, o.Shadow} {
		if p.Close != nil {
			all = append(all, p.Close)
		}
	}
	if c, ok := o.Tokenizer.(io.Closer); ok {
		all = append(all, c.Close)
	}
	if len(all) == 0 {
		return nil
	}
	return all
}
