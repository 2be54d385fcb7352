package client

import (
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/internal/call"
)

// await runs receive for an attempt with a limit. Where nothing comes within it, and another replica can take the
// call, it cancels the attempt, claims it, and returns call.ErrLate.
func (k *core) await(at attempt, receive func(cs grpc.ClientStream, m any) error, m any) error {
	tries, first := &k.call.Attempts, func() error { return receive(at.cs, m) }
	return tries.Await(at.way.Limit, at.cancel, first, func() (moved, ever bool) {
		if !k.claim(at) {
			return false, false
		}
		if moved, ever = tries.Move(); !moved {
			k.leave(at, nil)
		}
		return moved, ever
	})
}

// arrived notes that something of an answer has come, unless another attempt has taken the place of this one.
func (k *core) arrived(at attempt) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.phase != opened || k.at.n != at.n {
		return nil
	}
	return k.call.Attempts.Arrived()
}

// claim makes this goroutine the one that replaces the attempt.
func (k *core) claim(at attempt) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.phase != opened || k.at.n != at.n {
		return false
	}
	k.phase = opening
	return true
}

// next returns the attempt after one that has failed with err, which it makes where no other goroutine does, and after
// one that was left without an error. The error is that of the call.
func (k *core) next(at attempt, err error) (attempt, error) {
	switch {
	case err == io.EOF:
		return at, err
	case err == call.ErrLate, err != nil && k.claim(at): // a late attempt is claimed already
		return k.attempt(err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	now, failure := k.wait()
	if failure == nil && now.n == at.n {
		failure = err // the call has settled on it
	}
	return now, failure
}

// elsewhere has a stream that ended with err go on at another replica, with m as its next message. It returns true
// where the stream ends, with the error of the call in err. RecvMsg alone calls it.
func (k *core) elsewhere(m any, err *error) (ends bool) {
	broken, resume := *err, k.call.Resume
	if broken == io.EOF {
		return true
	}
	if resume.Complete(broken) { // only the status is missing
		*err = io.EOF
		return true
	}
	header, _ := k.at.cs.Header()
	if k.at.cancel != nil { // its output may be of no use, and go on
		k.at.cancel()
	}
	for {
		msg, way := resume.Next(broken)
		if msg == nil {
			break
		}
		at := attempt{n: k.at.n + 1, way: way}
		if broken = k.goOn(&at, msg, m); broken != nil && broken != io.EOF {
			if at.cancel != nil {
				at.cancel()
			}
			continue
		}
		at.cs = &continued{ClientStream: at.cs, header: header}
		k.mu.Lock()
		k.at = at
		k.mu.Unlock()
		if *err = broken; broken == nil {
			k.usage = k.call.FirstMessage()
		}
		return broken != nil
	}
	if k.call.Context.Err() != nil { // perhaps while a replica was being reserved
		k.call.End()
		*err = k.ended()
	}
	return true
}

// goOn makes an attempt with a request message, and receives its first message.
func (k *core) goOn(at *attempt, msg, first any) error {
	ctx, drains, err := k.decode(at)
	if err == nil {
		at.cs, err = k.request(ctx, msg, k.call.Attempts.Each)
	}
	switch {
	case err != nil:
	case drains:
		err = k.drain(*at).await(k, grpc.ClientStream.RecvMsg, first)
	default:
		err = at.cs.RecvMsg(first)
	}
	if err == nil && at.way.Split {
		err = k.call.Attempts.Arrived()
	}
	return err
}

// continued is the stream of an attempt that goes on with an earlier one. The application has the header of the first.
type continued struct {
	grpc.ClientStream
	header metadata.MD
}

// Header implements [grpc.ClientStream].
func (c *continued) Header() (metadata.MD, error) { return c.header, nil }
