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
	closers []func() error

	// inside is held for reading while a policy is called outside the Router's mutex, and for writing from the moment
	// of closing on. It is never taken with the Router's mutex held.
	inside sync.RWMutex
}

// enter reports whether the policy may still be called, until leave.
func (g *gate) enter() bool { return g.closers == nil || g.inside.TryRLock() }

func (g *gate) leave() {
	if g.closers != nil {
		g.inside.RUnlock()
	}
}

// close closes, and waits up to CloseTimeout.
func (g *gate) close() error {
	if g.closers == nil {
		return nil
	}
	done := make(chan error, 1)
	go func() {
		g.inside.Lock() // for good: no later call enters
		done <- closeAll(g.closers)
	}()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("router: closing the policy: %w", err)
		}
		return nil
	case <-time.After(CloseTimeout):
		return fmt.Errorf("router: closing the policy takes longer than %v", CloseTimeout)
	}
}

func closeAll(closers []func() error) (err error) {
	for _, c := range closers {
		err = errors.Join(err, c())
	}
	return err
}

// closersOf returns what closes the policies and the tokenizer.
func closersOf(o *Options) (all []func() error) {
	for _, p := range []policy.Policy{o.Policy, o.Plain, o.Shadow} {
		if p.Close != nil {
			all = append(all, p.Close)
		}
	}
	if c, ok := o.Tokenizer.(io.Closer); ok {
		all = append(all, c.Close)
	}
	return all
}
