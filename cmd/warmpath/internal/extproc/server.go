package extproc

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/experimental"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"

	"github.com/warmpath/warmpath/internal/endpoint"
	"github.com/warmpath/warmpath/internal/requestkey"
)

// Options are those of an endpoint. Zero is the default.
type Options struct {
	// Deployment is the deployment of all requests; "" = by the model, or the only one.
	Deployment string
	// ForTests obeys the request header test-epp-endpoint-selection, and reports in a response header which endpoint has
	// served, as the protocol's conformance tests want: whoever sends the header chooses the replica.
	ForTests bool
	// MaxBody bounds how much of one body is read for the key, in bytes; default 1 MiB.
	MaxBody int
	// MaxHeld bounds how much of all bodies is held at once, in bytes: one that would exceed it is routed by what was
	// read; default 96 MiB.
	MaxHeld int64
}

// A Server is an ext_proc endpoint. Safe for use by many goroutines.
type Server struct {
	grpc     *grpc.Server
	host     endpoint.Host
	options  Options
	sessions *requestkey.SessionKeys
	table    *requestkey.Table
	held     atomic.Int64 // bytes of bodies
}

const (
	// maxMessage bounds a message of the gateway: a body that it has buffered.
	maxMessage = 16 << 20
	// window is how much of a stream is received ahead of its reader.
	window = 64 << 10
	// maxKept bounds what is kept of a request beyond what is read for its key.
	maxKept = 64 << 10
	// maxChunk is the longest chunk that is sent: some gateways take 64 KiB, with what is around it.
	maxChunk = 62_000
)

// New returns an endpoint of a host.
func New(host endpoint.Host, o Options) (*Server, error) {
	if o.MaxBody == 0 {
		o.MaxBody = 1 << 20
	}
	if o.MaxHeld == 0 {
		o.MaxHeld = 96 << 20
	}
	s := &Server{host: host, options: o}
	var err error
	if s.sessions, err = requestkey.NewSessionKeys(); err != nil {
		return nil, err
	}
	if s.table, err = requestkey.NewTable(); err != nil {
		return nil, err
	}
	s.grpc = grpc.NewServer(append(host.ServerOptions(),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.StaticStreamWindowSize(window),
		grpc.StaticConnWindowSize(16*window),
		experimental.BufferPool(mem.NewTieredBufferPool(256, 4<<10, 16<<10, 32<<10, 64<<10, 1<<20)),
	)...)
	extprocv3.RegisterExternalProcessorServer(s.grpc, &processor{Server: s})
	healthpb.RegisterHealthServer(s.grpc, host.Health(map[string]string{
		"liveness": "", "readiness": o.Deployment, extprocv3.ExternalProcessor_ServiceDesc.ServiceName: o.Deployment,
	}))
	return s, nil
}

// Serve serves until Shutdown, and returns nil after it.
func (s *Server) Serve(lis net.Listener) error {
	err := s.grpc.Serve(s.host.Bounded(lis))
	if errors.Is(err, grpc.ErrServerStopped) { // it was shut down before it began
		return nil
	}
	return err
}

// Shutdown takes no more requests, and waits for those under way until the context ends. A nil Server has none.
func (s *Server) Shutdown(ctx context.Context) {
	if s == nil {
		return
	}
	stop := context.AfterFunc(ctx, s.grpc.Stop)
	defer stop()
	s.grpc.GracefulStop()
}

// Close ends all requests at once.
func (s *Server) Close() {
	if s != nil {
		s.grpc.Stop()
	}
}

// processor is the service.
type processor struct {
	extprocv3.UnimplementedExternalProcessorServer
	*Server
}

// Process implements the service.
func (p *processor) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	x := newExchange(p.Server, stream)
	defer x.end()
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = x.take(m)
		}
		if err != nil {
			return err
		}
	}
}
