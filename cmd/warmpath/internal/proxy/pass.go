package proxy

import (
	"context"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/call"
)

const (
	// patience is how long a client may take from its first message to its half-close to count as one that sends one
	// message. Clients send both together; a call that goes on waits so long once.
	patience = 5 * time.Millisecond
	// silence is after how long without a message a call is opened: its replica may be the one to begin.
	silence = time.Second
)

var (
	single = &grpc.StreamDesc{ServerStreams: true}
	stream = &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
)

// A passage is one call on its way. Its goroutine reads answers, a second one requests.
type passage struct {
	in  grpc.ServerStream
	ctx context.Context // of in: it ends with the handler, and the call to the replica with it

	arrived chan arrival  // requests before out is open
	opened  chan struct{} // closed when out is open
	out     grpc.ClientStream

	requests []*mem.BufferSlice // to send when out opens
	closed   bool               // the client sends no more than those
}

// An arrival is a request message, or the end of them.
type arrival struct {
	message *mem.BufferSlice
	err     error
}

// pass passes a call on. It is the handler of all methods.
func (p *Proxy) pass(_ any, in grpc.ServerStream) error {
	grow(0)
	x := &passage{in: in, ctx: in.Context(), arrived: make(chan arrival), opened: make(chan struct{})}
	go x.read()
	if err := x.begin(p.patience); err != nil {
		return err
	}
	method, _ := grpc.MethodFromServerStream(in)
	if x.asksForOwnHealth(method) {
		return p.ownHealth(x, method)
	}
	if err := x.open(p.conn, method); err != nil {
		return err
	}
	return x.answer()
}

// read reads requests, for begin until the call is open and then for the replica.
func (x *passage) read() {
	grow(0)
	for {
		m := new(mem.BufferSlice)
		err := x.in.RecvMsg(m)
		select {
		case x.arrived <- arrival{m, err}:
		case <-x.opened:
			switch {
			case err == io.EOF:
				_ = x.out.CloseSend() // its error is RecvMsg's to return
			case err == nil:
				err = x.out.SendMsg(m)
				m.Free()
			}
		case <-x.ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// begin waits until it is known what the call is opened with.
func (x *passage) begin(patience time.Duration) error {
	wait := time.NewTimer(silence)
	defer wait.Stop()
	for len(x.requests) < 2 {
		select {
		case a := <-x.arrived:
			switch {
			case a.err == io.EOF:
				x.closed = true
				return nil
			case a.err != nil:
				return a.err
			}
			x.requests = append(x.requests, a.message)
			wait.Reset(patience)
		case <-wait.C:
			return nil
		case <-x.ctx.Done():
			return status.FromContextError(x.ctx.Err()).Err()
		}
	}
	return nil
}

// open opens the call to a replica, and sends what has come. The first message is not freed: what the policy looks at
// is in its memory.
func (x *passage) open(conn *grpc.ClientConn, method string) (err error) {
	md, _ := metadata.FromIncomingContext(x.ctx)
	desc, options := single, x.options(md)
	if !x.closed || len(x.requests) != 1 {
		desc = stream
		if len(x.requests) > 0 {
			options = append(options, call.Defer{})
		}
	}
	for _, key := range hopByHop {
		delete(md, key)
	}
	x.out, err = conn.NewStream(metadata.NewOutgoingContext(x.ctx, md), desc, method, options...)
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
	close(x.opened)
	return nil
}

// hopByHop are the keys that gRPC itself sets on each connection.
var hopByHop = [...]string{":authority", "content-type", "user-agent", "grpc-accept-encoding"}

// options are those of the call to a replica: the client's compression and content type.
func (x *passage) options(md metadata.MD) []grpc.CallOption {
	options := make([]grpc.CallOption, 1, 4)
	options[0] = raw
	s, _ := grpc.ServerTransportStreamFromContext(x.ctx).(interface{ RecvCompress() string })
	if s != nil && s.RecvCompress() != "" && s.RecvCompress() != encoding.Identity {
		options = append(options, grpc.UseCompressor(s.RecvCompress()))
	}
	if types := md["content-type"]; len(types) > 0 {
		if _, subtype, found := strings.Cut(types[0], "+"); found && subtype != encodingproto.Name {
			options = append(options, grpc.CallContentSubtype(subtype))
		}
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
				return err
			}
		}
	}
	var m mem.BufferSlice
	for {
		err := x.out.RecvMsg(&m)
		if !header {
			header = true
			if md, _ := x.out.Header(); md != nil {
				if err := x.in.SetHeader(md); err != nil {
					return err
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
			return err
		}
	}
}

// grow makes the stack of a goroutine as large as a call needs it at once.
//
//go:noinline
func grow(n int) byte {
	var room [6 << 10]byte
	return room[n]
}
