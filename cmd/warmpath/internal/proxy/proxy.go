package proxy

import (
	"compress/zlib"
	"context"
	"errors"
	"io"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // clients in C++ and Python compress with it
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"

	"github.com/warmpath/warmpath/client"
)

// A Proxy passes calls on. Safe for use by many goroutines.
type Proxy struct {
	conn     *grpc.ClientConn
	server   *grpc.Server
	patience time.Duration
	ballast  []byte
}

const (
	// maxMessage bounds a message, in bytes: what the client may hold for its retries.
	maxMessage = 64 << 20
	// window is how much of a stream, and with the factor of a connection, is received ahead of its reader. That it is
	// fixed saves the pings by which gRPC would measure it.
	window, windows = 1 << 20, 4
	// Ballast is never touched, so it is address space and not memory. It lets so many bytes of garbage pass before they
	// are collected; the small heap of a proxy would be collected often, and the calls of that time would wait.
	Ballast = 64 << 20
)

// New returns a proxy to a target of [client.New], which the options are for.
func New(target string, dial []grpc.DialOption, serve ...grpc.ServerOption) (*Proxy, error) {
	conn, err := client.New(target, append([]grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(windows * window),
	}, dial...)...)
	if err != nil {
		return nil, err
	}
	conn.Connect()
	p := &Proxy{conn: conn, patience: patience, ballast: make([]byte, Ballast)}
	p.server = grpc.NewServer(append([]grpc.ServerOption{
		grpc.ForceServerCodecV2(Codec{}), grpc.UnknownServiceHandler(p.pass), grpc.InTapHandle(outgoing),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(windows * window),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	}, serve...)...)
	return p, nil
}

// Serve serves until Shutdown or Close, and returns nil after them.
func (p *Proxy) Serve(lis net.Listener) error {
	if err := p.server.Serve(lis); !errors.Is(err, grpc.ErrServerStopped) { // it was shut down before it began
		return err
	}
	return nil
}

// Shutdown takes no more calls, waits for those under way until the context ends, and closes the proxy.
func (p *Proxy) Shutdown(ctx context.Context) error {
	stop := context.AfterFunc(ctx, p.server.Stop)
	p.server.GracefulStop()
	stop()
	return p.conn.Close()
}

// Close ends all calls at once.
func (p *Proxy) Close() error {
	p.server.Stop()
	return p.conn.Close()
}

func init() { encoding.RegisterCompressor(deflate{}) }

// Codec passes messages through, which are of the type *mem.BufferSlice.
type Codec struct{}

// Marshal implements [encoding.CodecV2]. The message keeps its own reference, for another attempt.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	m := v.(*mem.BufferSlice)
	m.Ref()
	return *m, nil
}

// Unmarshal implements [encoding.CodecV2].
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	data.Ref()
	*v.(*mem.BufferSlice) = data
	return nil
}

// Name implements [encoding.CodecV2].
func (Codec) Name() string { return encodingproto.Name }

// raw is the option of every call to a replica.
var raw = grpc.ForceCodecV2(Codec{})

// deflate is the other compression of gRPC's C++ and Python clients, which grpc-go does not have: zlib's format. Few
// clients use it, so nothing is kept from one message to the next.
type deflate struct{}

// Name implements [encoding.Compressor].
func (deflate) Name() string { return "deflate" }

// Compress implements [encoding.Compressor].
func (deflate) Compress(w io.Writer) (io.WriteCloser, error) { return zlib.NewWriter(w), nil }

// Decompress implements [encoding.Compressor].
func (deflate) Decompress(r io.Reader) (io.Reader, error) { return zlib.NewReader(r) }
