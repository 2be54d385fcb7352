package call

import (
	"io"
	"sync/atomic"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// A Resume is what a stream needs to go on at another replica when its own dies after the first message: the request,
// and the output so far, which is put behind its prompt. The goroutine of RecvMsg uses it; any may end the call.
type Resume struct {
	call   *Call
	output atomic.Pointer[requestkey.Output] // nil = the stream does not go on elsewhere
	size   int64                             // of what is kept, in bytes

	// The goroutine of RecvMsg uses the fields below.
	replies replies // messages that the output does not have yet
	moved   bool    // the stream goes on elsewhere: each message is read as it comes
}

const (
	maxKept    = 4 << 20   // bytes that one stream keeps of its request
	maxKeptAll = 256 << 20 // bytes that the streams of a channel keep
)

// Keep keeps the request message before it is sent, if the stream can go on elsewhere.
func (r *Resume) Keep(msg any) {
	h := r.call.handle
	b := h.bound.Load()
	if r.output.Load() != nil || b.Config.MaxResumes <= 0 { // of an earlier attempt
		return
	}
	output, size := b.dialect(&r.call.key.request).Output(msg, maxKept, &h.ends)
	if output == nil {
		return
	}
	r.size = int64(size)
	over := h.resumable.Add(r.size) > maxKeptAll
	if r.output.Store(output); over {
		r.forget()
	}
}

// forget drops what is kept.
func (r *Resume) forget() {
	if r.output.Swap(nil) != nil {
		r.call.handle.resumable.Add(-r.size)
	}
}

// Received takes in a message. It reports whether the application is to have it.
func (r *Resume) Received(msg any) (deliver bool) {
	o := r.output.Load()
	if o == nil {
		return true
	}
	if !r.moved && r.replies.deliver(msg) {
		if r.replies.end > maxLog {
			r.catchUp(o)
		}
		return true
	}
	return r.read(o, msg)
}

// read has the output take in a message. It reports whether the application is to have it.
func (r *Resume) read(o *requestkey.Output, msg any) bool {
	deliver, useless := o.Read(msg)
	if useless {
		r.forget()
	}
	return deliver
}

// catchUp has the output take in the messages that came so far.
func (r *Resume) catchUp(o *requestkey.Output) {
	r.replies.read(func(m proto.Message) { r.read(o, m) })
}

// Over frees memory after the last message of a stream that ended with err. Some outputs that ended in order are read
// all the same: their last ids tell how outputs of the model end.
func (r *Resume) Over(err error) {
	if n := r.call.handle.learned.Add(1); err == io.EOF && !r.moved && (n <= firstLearned || n%laterLearned == 0) {
		if o := r.output.Load(); o != nil {
			r.catchUp(o)
		}
	}
	r.replies.free()
}

// firstLearned is how many of the channel's first outputs are read, and laterLearned every how many later.
const firstLearned, laterLearned = 8, 1024

// Complete reports whether a stream that broke with err has had its last message, so that it lacks its status alone.
func (r *Resume) Complete(err error) bool {
	o := r.output.Load()
	if o == nil {
		return false
	}
	r.catchUp(o)
	return o.Ended() && interrupts(err)
}

// Next reserves a replica, or two, for another attempt of a stream that broke with err. It returns the request message
// of the attempt, nil where the stream does not go on.
func (r *Resume) Next(err error) (msg any, way Way) {
	c, o := r.call, r.output.Load()
	last, err := c.Attempts.lost(err)
	if o == nil || c.Context.Err() != nil || last.Replica == nil ||
		!interrupts(err) && !c.legs.broke(err) {
		return nil, way
	}
	b, how := c.handle.bound.Load(), telemetry.NotResumed
	if next := o.Next(); next != nil && r.follows(next) && c.reserve(0) == nil {
		msg, way.Split, how = next, c.legs != nil, telemetry.DidResume
		telemetry.Resumed(trace.SpanFromContext(c.Context), last.Replica, o.Len())
	}
	c.handle.Telemetry.Count(c, telemetry.Resumes, b.Policy, how)
	return msg, way
}

// follows makes the request message of another attempt the one of the call, if the budget has another attempt. The
// first time is free, since a replica had answered the call; more come out of the channel's retry budget.
func (r *Resume) follows(msg any) bool {
	c := r.call
	if policy.Limit(c.resumed) >= c.handle.bound.Load().Config.MaxResumes || c.resumed > 0 && !c.Attempts.retry() {
		return false
	}
	r.moved = true
	c.Attempts.next()
	c.Attempts.Sends(msg)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resumed++
	c.key.filled = false
	router.Rekey(&c.key.request)
	return true
}
