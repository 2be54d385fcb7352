package client

import (
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// elsewhere has a stream that ended with err go on at another replica, with m as its next message. It returns true
// where the stream ends, with the error of the call in err. RecvMsg alone calls it.
func (k *core) elsewhere(m any, err *error) (ends bool) {
	broken, resume := *err, k.call.Resume
	if resume == nil || broken == io.EOF {
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
		msg, way := resume.Next(broken, &k.options)
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
		at.cs, err = k.request(ctx, msg, k.options.Attempts)
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
