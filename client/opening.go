package client

import (
	"context"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

type phase uint8

const (
	fresh   phase = iota // nothing asked of gRPC yet
	opening              // somebody is opening it
	opened               // cs is set
	failed               // err is set: it could not be opened
)

// begin opens the stream with its first message, or without one, if nobody has,
// and reports whether it was the one; else it waits for whoever is at it.
func (k *core) begin(m any) (mine bool, err error) {
	k.mu.Lock()
	if k.phase != fresh {
		k.mu.Unlock()
		_, err := k.wait()
		return false, err
	}
	k.phase = opening
	k.mu.Unlock()

	k.call.SetMessage(m)
	k.watched = !k.desc.ClientStreams && k.tries.watches(k.opts)
	cs, err := k.attempt(m)

	k.mu.Lock()
	k.cs, k.err = cs, err
	k.phase = opened
	if err != nil {
		k.phase = failed
	}
	if !k.desc.ClientStreams {
		k.msg = m
	}
	if k.changed != nil {
		close(k.changed)
	}
	ended := k.ended
	k.mu.Unlock()
	switch {
	case ended: // meanwhile, by its context
		k.call.End()
	case err != nil:
		k.end(err)
	}
	return true, err
}

// attempt asks gRPC for a stream and sends the first message on it, as often as
// the attempt loop allows. What the queue says is final.
func (k *core) attempt(m any) (grpc.ClientStream, error) {
	for {
		call := k.tries.call
		if b := call.Handle().Bound(); b != nil {
			if err := call.Acquire(b); err != nil {
				return nil, err
			}
		}
		cs, err := k.openStream(k.attemptContext(call), m)
		if err == nil {
			return cs, nil
		}
		if err := k.tries.again(k.ctx, err); err != nil {
			return nil, call.Final(err)
		}
	}
}

// openStream asks gRPC for a stream and sends the first message on it.
func (k *core) openStream(ctx context.Context, m any) (grpc.ClientStream, error) {
	cs, err := k.open(ctx, k.desc, k.tries.cc, k.tries.method, k.opts...)
	if err != nil || m == nil {
		return cs, err
	}
	// A stream that broke meanwhile tells its status to RecvMsg; io.EOF says so.
	if err := cs.SendMsg(m); err != nil && err != io.EOF {
		return nil, err
	}
	return cs, nil
}

// wait returns the open stream, or the status that the call ended with.
func (k *core) wait() (grpc.ClientStream, error) {
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
			return nil, status.FromContextError(k.ctx.Err()).Err()
		}
		k.mu.Lock()
	}
	defer k.mu.Unlock()
	return k.cs, k.err
}

// ready is wait for an action that opens a deferred bidirectional stream.
func (k *core) ready() (grpc.ClientStream, error) {
	if k.desc.ClientStreams {
		if _, err := k.begin(nil); err != nil {
			return nil, err
		}
	}
	return k.wait()
}

// again opens the stream anew after an attempt failed before its first message.
// It returns no stream, and the error for the application, where that may not be.
func (k *core) again(cs grpc.ClientStream, err error) (grpc.ClientStream, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cs != cs {
		return k.cs, nil
	}
	if err == io.EOF || k.committed || k.desc.ClientStreams {
		return nil, err
	}
	if err := k.tries.again(k.ctx, err); err != nil {
		return nil, err
	}
	next, err := k.attempt(k.msg)
	if k.ended { // meanwhile, by its context
		k.tries.call.End()
	}
	if err != nil {
		return nil, err
	}
	if k.closed {
		_ = next.CloseSend() // its error is RecvMsg's to tell
	}
	k.cs = next
	return next, nil
}
