package client

import (
	"context"
	"io"

	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/call"
)

type phase uint8

const (
	fresh   phase = iota // gRPC is asked for nothing yet
	opening              // one goroutine makes an attempt, or waits to make one
	opened               // at is set
	failed               // err is set: there is no other attempt
)

// begin opens the stream, with its first message if has is set, unless another goroutine does or did. It
// reports whether it opened it, and waits for the other goroutine where it did not.
func (k *core) begin(m any, has bool) (mine bool, err error) {
	k.mu.Lock()
	if k.phase != fresh {
		k.mu.Unlock()
		_, err := k.wait()
		return false, err
	}
	k.phase = opening
	if has && !k.desc.ClientStreams {
		k.opts = k.call.Attempts.Sends(m, k.opts)
	}
	k.mu.Unlock()

	k.call.SetMessage(m)
	next, err := k.attempt(m, has)
	k.mu.Lock()
	if !k.desc.ClientStreams {
		k.msg, k.has = m, has
	}
	k.mu.Unlock()
	k.settle(next, err)
	if err != nil {
		k.end(err)
	}
	return true, err
}

// attempt asks gRPC for a stream and sends the first message on it, as often as the attempt loop allows.
func (k *core) attempt(m any, has bool) (attempt, error) {
	for {
		if err := k.call.Attempts.Reserve(k.ctx); err != nil {
			return attempt{}, err
		}
		next := attempt{n: k.call.Attempts.Begun}
		ctx := context.Context(&k.call)
		if k.call.Attempts.Limited() && !k.desc.ClientStreams {
			ctx, next.cancel = context.WithCancel(ctx)
		}
		var err error
		next.cs, err = k.open(ctx, k.desc, k.conn, k.method, k.call.Attempts.Ranked(k.opts)...)
		if err == nil && has {
			err = next.cs.SendMsg(m)
		}
		if err == nil || err == io.EOF { // the status of a stream that broke meanwhile is RecvMsg's to return
			return next, nil
		}
		if next.cancel != nil {
			next.cancel()
		}
		if err := k.call.Attempts.Again(k.ctx, err); err != nil {
			return attempt{}, err
		}
	}
}

// settle ends phase opening with the stream of an attempt, or the error of the call.
func (k *core) settle(next attempt, err error) {
	k.mu.Lock()
	if k.phase, k.err = opened, err; err != nil {
		k.phase = failed
	} else if next.cs != nil {
		k.at = next
	}
	if k.changed != nil {
		close(k.changed)
		k.changed = nil
	}
	ended, closed, cs := k.ended, k.closed, k.at.cs
	k.mu.Unlock()
	if ended { // meanwhile, by its context
		k.call.End()
	}
	if closed && err == nil {
		_ = cs.CloseSend() // its error is RecvMsg's to return
	}
}

// lockSettled locks mu once no attempt is being made. It returns false, without the lock, where the context ends first.
func (k *core) lockSettled() bool {
	k.mu.Lock()
	for k.phase == fresh || k.phase == opening {
		if k.changed == nil {
			k.changed = make(chan struct{})
		}
		changed := k.changed
		k.mu.Unlock()
		select {
		case <-changed:
		case <-k.ctx.Done():
			return false
		}
		k.mu.Lock()
	}
	return true
}

// wait returns the open stream, or the status that the call ended with.
func (k *core) wait() (attempt, error) {
	if !k.lockSettled() {
		return attempt{}, status.FromContextError(k.ctx.Err()).Err()
	}
	defer k.mu.Unlock()
	return k.at, k.err
}

// commit keeps the call on the attempt. It returns false where another one has taken its place.
func (k *core) commit(at attempt) bool {
	if !k.lockSettled() {
		return true
	}
	defer k.mu.Unlock()
	if k.phase == failed || k.at.n != at.n {
		return false
	}
	k.committed, k.msg = true, nil
	return true
}

// claim makes this goroutine the one that replaces the attempt.
func (k *core) claim(at attempt) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.phase != opened || k.at.n != at.n || k.committed || k.desc.ClientStreams {
		return false
	}
	k.phase = opening
	return true
}

// again replaces an attempt that failed before its first message. It returns the error of the call where
// the attempt is not replaced.
func (k *core) again(at attempt, err error) (attempt, error) {
	if err == io.EOF {
		return at, err
	}
	if err != call.ErrLate && !k.claim(at) { // a late attempt is claimed already
		now, failure := k.wait()
		switch {
		case failure != nil:
			return now, failure
		case now.n == at.n:
			return at, err // the call is committed to it
		}
		return now, nil
	}
	var next attempt
	if err = k.call.Attempts.Again(k.ctx, err); err == nil {
		next, err = k.attempt(k.msg, k.has)
	}
	k.settle(next, err)
	return next, err
}

// first runs receive, which waits for something of the attempt. Where nothing comes within first_token_timeout,
// and another replica can take the call, it cancels the attempt, claims it, and returns call.ErrLate.
func (k *core) first(at attempt, receive func() error) error {
	if at.cancel == nil {
		return receive()
	}
	return k.call.Attempts.Await(at.cancel, receive, func() (move, ever bool) {
		if !k.claim(at) {
			return false, false
		}
		if move, ever = k.call.Attempts.Move(); !move {
			k.settle(attempt{}, nil)
		}
		return move, ever
	})
}
