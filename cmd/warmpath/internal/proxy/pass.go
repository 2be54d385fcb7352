package proxy

import (
	"context"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/internal/call"
)

const (
	// patience is how long a client may take from its first message to its half-close to count as one that sends one
	// message. Clients send both together; a call that goes on waits so long once.
	patience = 5 * time.Millisecond
	// silence is after how many times patience a call without a message is opened: its replica may be the one to begin.
	silence = 200
)

var (
	single = &grpc.StreamDesc{ServerStreams: true}
	stream = &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
)

// A passage is one call on its way. The goroutine of its handler reads requests, and answers too where its client has
// half-closed before the call opens; else a second one has the answers.
type passage struct {
	proxy *Proxy
	in    grpc.ServerStream
	ctx   context.Context // of in: it ends with the handler, and the call to the replica with it

	requests []*mem.BufferSlice // to send when the call opens
	closed   bool               // the client sends no more than those

	opened   sync.WaitGroup // waits for out, nil = there is none
	out      grpc.ClientStream
	answered sync.WaitGroup // waits for err
	err      error          // the call's status
}

// pass passes a call on. It is the handler of all methods.
func (p *Proxy) pass(_ any, in grpc.ServerStream) error {
	grow(0)
	x := &passage{proxy: p, in: in, ctx: in.Context()}
	x.opened.Add(1)
	x.answered.Add(1)
	wait := time.AfterFunc(silence*p.patience, x.early)
	for {
		m, err := x.receive()
		switch first := wait.Stop(); {
		case !first:
			return x.rest(m, err)
		case err == io.EOF:
			x.closed = true
			return x.serve()
		case err != nil:
			return err
		}
		x.requests = append(x.requests, m)
		if len(x.requests) > 1 {
			go x.early()
			return x.rest(x.receive())
		}
		wait.Reset(p.patience)
	}
}

func (x *passage) receive() (*mem.BufferSlice, error) {
	m := new(mem.BufferSlice)
	return m, x.in.RecvMsg(m)
}

// early serves a call whose client has not half-closed. Its status may come while the handler waits for a request: only
// the transport's own method, which tests pin, ends that.
func (x *passage) early() {
	grow(0)
	x.err = x.serve()
	t, _ := grpc.ServerTransportStreamFromContext(x.ctx).(interface{ WriteStatus(*status.Status) error })
	if t != nil {
		st := status.New(codes.OK, "")
		if x.err != nil {
			st = status.Convert(x.err)
		}
		_ = t.WriteStatus(st) // a client that is gone needs none
	}
	x.answered.Done()
}

// rest passes on the requests from m on that come once the call is open, and returns the call's status.
func (x *passage) rest(m *mem.BufferSlice, err error) error {
	x.opened.Wait()
	for broken := error(nil); x.out != nil && err == nil && broken == nil; m, err = x.receive() {
		broken = x.out.SendMsg(m) // RecvMsg returns the status
		m.Free()
	}
	if x.out != nil && err == io.EOF {
		_ = x.out.CloseSend() // likewise
	}
	x.answered.Wait()
	return x.err
}

// serve opens the call, passes the answers on, and returns the call's status.
func (x *passage) serve() (err error) {
	method, _ := grpc.MethodFromServerStream(x.in)
	own := x.asksForOwnHealth(method)
	if !own {
		err = x.open(method)
	}
	x.opened.Done()
	switch {
	case own:
		return x.ownHealth(method)
	case err != nil:
		return err
	}
	return x.answer()
}

// open opens the call to a replica, and sends what has come. The first message is not freed: what the policy looks at
// is in its memory.
func (x *passage) open(method string) (err error) {
	desc := stream
	if x.closed && len(x.requests) == 1 {
		desc = single
	}
	x.out, err = x.proxy.conn.NewStream(x.ctx, desc, method, x.options()...)
	for i := 0; err == nil && i < len(x.requests); i++ {
		err = x.out.SendMsg(x.requests[i])
	}
	if err != nil && err != io.EOF { // of that RecvMsg returns the status
		return err
	}
	x.requests = nil
	if x.closed && desc == stream {
		_ = x.out.CloseSend() // its error is RecvMsg's to return
	}
	return nil
}

// hopByHop are the keys that gRPC itself sets on each connection.
var hopByHop = [...]string{":authority", "content-type", "user-agent", "grpc-accept-encoding"}

// outgoing makes a call's metadata those of the call to a replica. In its handler they would have to be copied.
func outgoing(ctx context.Context, of *tap.Info) (context.Context, error) {
	for _, key := range hopByHop {
		delete(of.Header, key)
	}
	return metadata.NewOutgoingContext(ctx, of.Header), nil
}

// options are those of the call to a replica: the client's compression and content type.
func (x *passage) options() []grpc.CallOption {
	options := append(make([]grpc.CallOption, 0, 4), raw, call.Passed{Proxied: true, Defers: len(x.requests) > 0})
	s, _ := grpc.ServerTransportStreamFromContext(x.ctx).(interface {
		RecvCompress() string
		ContentSubtype() string
	})
	if s == nil {
		return options
	}
	if c := s.RecvCompress(); c != "" && c != encoding.Identity {
		options = append(options, grpc.UseCompressor(c))
	}
	if t := s.ContentSubtype(); t != "" && t != encodingproto.Name {
		options = append(options, grpc.CallContentSubtype(t))
	}
	return options
}

// answer passes the answers on, and returns the call's status.
func (x *passage) answer() error {
	header := false // it has been passed on
	if !x.closed {
		md, _ := x.out.Header() // its error is RecvMsg's to return
		if header = md != nil; header {
			if err := x.in.SendHeader(md); err != nil {
				return x.drop(err)
			}
		}
	}
	var m mem.BufferSlice
	for {
		err := x.out.RecvMsg(&m)
		if !header {
			header = true
			if md, _ := x.out.Header(); len(md) > 1 { // than the content type
				if err := x.in.SetHeader(md); err != nil {
					return x.drop(err)
				}
			}
		}
		if err != nil {
			x.in.SetTrailer(x.out.Trailer())
			if err == io.EOF {
				return nil
			}
			return err
		}
		err = x.in.SendMsg(&m)
		m.Free()
		if err != nil {
			return x.drop(err)
		}
	}
}

// drop leaves a call whose client takes no more: its context ends with the handler, and then it is read to its end.
func (x *passage) drop(err error) error {
	go func() {
		var m mem.BufferSlice
		for x.out.RecvMsg(&m) == nil {
			m.Free()
		}
	}()
	return err
}

// grow makes the stack of a goroutine as large as a call needs it at once.
//
//go:noinline
func grow(n int) byte {
	var room [6 << 10]byte
	return room[n]
}

// HealthService is the service whose health is the proxy's own: it serves while a replica is connected. The health of
// any other service is a replica's.
const HealthService = "warmpath"

// asksForOwnHealth reports whether a call is not one for a replica.
func (x *passage) asksForOwnHealth(method string) bool {
	if method != healthpb.Health_Check_FullMethodName && method != healthpb.Health_Watch_FullMethodName ||
		len(x.requests) != 1 {
		return false
	}
	var q healthpb.HealthCheckRequest
	return proto.Unmarshal(x.requests[0].Materialize(), &q) == nil && q.GetService() == HealthService
}

// ownHealth answers with the proxy's own health: once, or each time that it changes.
func (x *passage) ownHealth(method string) error {
	conn := x.proxy.conn
	for last := healthpb.HealthCheckResponse_UNKNOWN; ; {
		state, is := conn.GetState(), healthpb.HealthCheckResponse_NOT_SERVING
		if state == connectivity.Ready || state == connectivity.Idle { // an idle channel connects for a call
			is = healthpb.HealthCheckResponse_SERVING
		}
		if is != last {
			raw, _ := proto.Marshal(&healthpb.HealthCheckResponse{Status: is}) // it cannot fail: there is no text in it
			if err := x.in.SendMsg(&mem.BufferSlice{mem.SliceBuffer(raw)}); err != nil {
				return err
			}
			last = is
		}
		if method == healthpb.Health_Check_FullMethodName {
			return nil
		}
		if !conn.WaitForStateChange(x.ctx, state) {
			return status.FromContextError(x.ctx.Err()).Err()
		}
	}
}
