package client

import (
	"context"
	"io"
	"runtime"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/channel"
)

// core is one streaming call: opening, the attempt loop, the end.
type core struct {
	call   channel.Call
	tries  attempts
	desc   *grpc.StreamDesc
	open   grpc.Streamer
	opts   []grpc.CallOption
	parent context.Context    // the application's
	ctx    context.Context    // cancelled at the end
	cancel context.CancelFunc // nil: of life
	life   lifetime
	finish *onFinish
	stop   func() bool // of the AfterFunc that runs finish
	once   sync.Once   // end

	watched  bool               // whether the first message is watched; set by who opens
	unanswer context.CancelFunc // of the attempt under way, where it is watched

	// From the first message on, for RecvMsg alone: the stream, since no other follows, and
	// whether its messages may tell usage.
	settled grpc.ClientStream
	usage   bool

	// mu guards the fields below. Opening again, in recv, happens under it; it
	// always ends with the context.
	mu        sync.Mutex
	phase     phase
	second    *channel.Call // of the second attempt, where the first message was late
	changed   chan struct{} // closed when phase leaves opening; made by who waits
	cs        grpc.ClientStream
	err       error
	msg       any  // kept for another attempt until committed
	closed    bool // CloseSend was called
	committed bool // the application has seen something of this attempt
	cleanup   runtime.Cleanup
	ended     bool
}

func (k *core) send(m any) error {
	mine, err := k.begin(m)
	if mine || err != nil {
		return err
	}
	cs, err := k.wait()
	if err != nil {
		return err
	}
	return cs.SendMsg(m)
}

func (k *core) closeSend() error {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	// A server-streaming call that is closed before its message was sent is a
	// mistake of the application; the server answers it as it does without us.
	if _, err := k.begin(nil); err != nil {
		return err
	}
	cs, err := k.wait()
	if err != nil {
		return err
	}
	return cs.CloseSend()
}

func (k *core) recv(m any) error {
	cs := k.settled
	if cs == nil {
		var err error
		if cs, err = k.ready(); err != nil {
			return err
		}
	}
	for {
		var err error
		if k.watched {
			cs, err = k.receiveFirst(cs, m)
		} else {
			err = cs.RecvMsg(m)
		}
		if err == nil {
			k.received(cs, m)
			return nil
		}
		next, retryErr := k.again(cs, err)
		if next == nil {
			k.end(retryErr)
			return retryErr
		}
		cs = next
	}
}

// received notes a response message. The first one ends the attempt loop, if the
// application has not seen the response's header before.
func (k *core) received(cs grpc.ClientStream, m any) {
	call := k.tries.call
	if k.settled == nil {
		k.commit()
		call.FirstMessage()
		call.DropMessage()
		k.watched, k.settled, k.usage = false, cs, call.TellsUsage()
	}
	if k.usage {
		call.ReadUsage(m)
	}
	if !k.desc.ServerStreams {
		k.end(nil)
	}
}

// commit keeps the call on its attempt.
func (k *core) commit() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.committed, k.msg = true, nil
}

func (k *core) header() (metadata.MD, error) {
	for {
		if _, err := k.ready(); err != nil {
			return nil, nil // as gRPC does: RecvMsg tells the status
		}
		k.mu.Lock()
		if k.phase != opening { // again, after a first message that was late
			break
		}
		k.mu.Unlock()
	}
	k.committed, k.msg = true, nil
	cs := k.cs
	k.mu.Unlock()
	return cs.Header()
}

func (k *core) trailer() metadata.MD {
	k.mu.Lock()
	cs := k.cs
	k.mu.Unlock()
	if cs == nil {
		return nil
	}
	return cs.Trailer()
}

func (k *core) context() context.Context {
	if ctx := k.openContext(); ctx != nil {
		return ctx
	}
	return early{k.parent, k}
}

// openContext returns the context of the open stream, which commits the attempt;
// nil before.
func (k *core) openContext() context.Context {
	k.mu.Lock()
	cs := k.cs
	if k.phase != opened {
		cs = nil
	}
	if cs != nil {
		k.committed, k.msg = true, nil
	}
	k.mu.Unlock()
	if cs == nil {
		return nil
	}
	return cs.Context()
}

// end is the end of the call, once: err is io.EOF or nil on success.
func (k *core) end(err error) {
	k.once.Do(func() {
		if k.stop != nil {
			k.stop()
		}
		k.mu.Lock()
		k.ended = true
		k.cleanup.Stop()
		second := k.second
		k.mu.Unlock()
		if k.cancel != nil {
			k.cancel()
		} else {
			k.life.cancel()
		}
		k.call.End()
		if second != nil {
			second.End()
		}
		if k.finish != nil {
			if err == io.EOF {
				err = nil
			}
			k.finish.run(err)
		}
	})
}

func (k *core) setCleanup(c runtime.Cleanup) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cleanup = c
	if k.ended {
		c.Stop()
	}
}

// abandon ends a call whose stream the application dropped without reading to
// the end or cancelling.
func (k *core) abandon() {
	k.end(status.Error(codes.Canceled, "warmpath: the stream was dropped before its end"))
}
