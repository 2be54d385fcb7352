package client

import (
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// elsewhere has a stream that ended with err go on at another replica, with m as its next message. It returns true
// where the stream ends, with the error of the call in err. RecvMsg alone calls it.
func (k *core) elsewhere(m any, err *error) (ends bool) {
	broken := *err
	if broken == io.EOF {
		return true
	}
	if k.resume.Complete(broken) { // only the status is missing
		*err = io.EOF
		return true
	}
	header, _ := k.at.cs.Header()
	for {
		msg := k.resume.Next(broken)
		if msg == nil {
			break
		}
		var cs grpc.ClientStream
		if cs, broken = k.request(&k.call, msg, k.options.Attempts); broken == nil {
			broken = cs.RecvMsg(m)
		}
		if broken != nil && broken != io.EOF {
			continue
		}
		k.mu.Lock()
		k.at = attempt{n: k.at.n + 1, cs: &continued{ClientStream: cs, header: header}}
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

// continued is the stream of an attempt that goes on with an earlier one. The application has the header of the first.
type continued struct {
	grpc.ClientStream
	header metadata.MD
}

// Header implements [grpc.ClientStream].
func (c *continued) Header() (metadata.MD, error) { return c.header, nil }
