package extproc

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	"github.com/warmpath/warmpath/internal/endpoint"
)

// Options are those of an endpoint. Zero is the default.
type Options struct {
	// Deployment is the deployment of all requests; "" = by the model, or the only one.
	Deployment string
	// Fallbacks bounds the addresses behind the pick's, at most 16; default none: many gateways take one address.
	Fallbacks uint32
	// ForTests obeys the request header test-epp-endpoint-selection, and reports in a response header which endpoint has
	// served, as conformance tests of the protocol need it: any client can choose its replica then.
	ForTests bool
	// MaxBody bounds how much of one body is read for the key, in bytes; default 1 MiB.
	MaxBody int
	// MaxHeld bounds how much of all heads and bodies is held at once, in bytes: a request that would exceed it is
	// routed by what was read; default 64 MiB.
	MaxHeld int64
}

// A Server is an ext_proc endpoint. Safe for use by many goroutines.
type Server struct {
	grpc    *grpc.Server
	host    endpoint.Host
	options Options
	held    atomic.Int64 // bytes of heads and bodies
	holders *endpoint.Holders
	// leaving ends when Shutdown begins.
	leaving context.Context
	leave   context.CancelFunc
	showing showing
	// ballast is never touched, so it is address space and not memory. With the small heap of a server without it, the
	// garbage collector runs every 85 requests of 8 KB and takes a quarter of their processor time.
	ballast []byte
}

const (
	// maxMessage bounds a message of the gateway: a body that it has buffered.
	maxMessage = 256 << 20
	// window is how much of a stream is received ahead of its reader.
	window = 64 << 10
	// maxChunk is the longest chunk that is sent: some gateways take 64 KiB, with what is around it.
	maxChunk = 62_000
	// ballast lets 32 MiB of garbage pass before it is collected.
	ballast = 32 << 20
	// service is the service's name.
	service = "envoy.service.ext_proc.v3.ExternalProcessor"
)

// New returns an endpoint of a host.
func New(host endpoint.Host, o Options) *Server {
	o.MaxBody, o.MaxHeld = cmp.Or(o.MaxBody, 1<<20), cmp.Or(o.MaxHeld, 64<<20)
	s := &Server{host: host, options: o, holders: endpoint.NewHolders(), ballast: make([]byte, ballast)}
	s.leaving, s.leave = context.WithCancel(context.Background())
	own := append([]grpc.ServerOption{grpc.Creds(newEitherTLS())}, host.ServerOptions()...) // with TLS it has its own
	s.grpc = grpc.NewServer(append(own,
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(16*window),
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto")}),
	)...)
	s.grpc.RegisterService(&grpc.ServiceDesc{ServiceName: service, Streams: []grpc.StreamDesc{
		{StreamName: "Process", Handler: s.process, ServerStreams: true, ClientStreams: true},
	}}, nil)
	healthpb.RegisterHealthServer(s.grpc, host.Health(map[string]string{
		"liveness": "", "readiness": o.Deployment, service: o.Deployment,
	}))
	return s
}

// Serve serves until Shutdown or Close, and returns nil after them.
func (s *Server) Serve(lis net.Listener) error {
	err := s.grpc.Serve(s.host.Bounded(lis))
	if errors.Is(err, grpc.ErrServerStopped) { // it was shut down before it began
		return nil
	}
	return err
}

// Shutdown takes no more requests, and lets those go that lose nothing without the picker: their streams end with status
// OK. It waits for the others until the context ends, and then cuts them off. A nil Server has none.
func (s *Server) Shutdown(ctx context.Context) {
	if s == nil {
		return
	}
	s.leave()
	stop := context.AfterFunc(ctx, s.Close)
	defer stop()
	s.grpc.GracefulStop()
}

// Close ends all requests at once.
func (s *Server) Close() {
	if s != nil {
		s.grpc.Stop()
	}
}

// process serves one stream. Another goroutine receives its messages, one each time it is asked to, so that the stream
// can end while the gateway is silent.
func (s *Server) process(_ any, stream grpc.ServerStream) error {
	grow(0)
	x := &exchange{Server: s, stream: stream, gateway: gateway{from: hostOf(stream), requestMode: duplex, responseMode: duplex}}
	x.reservation = reservation{host: s.host, ctx: stream.Context()}
	defer x.end()
	var m message
	ask, got := make(chan struct{}, 1), make(chan error, 1)
	defer close(ask)
	go func() {
		for range ask {
			got <- stream.RecvMsg(&m)
		}
	}()
	for {
		ask <- struct{}{}
		err := x.next(got)
		if errors.Is(err, io.EOF) || x.let {
			return nil
		}
		if err == nil {
			err = m.read()
		}
		if err == nil {
			err = x.take(&m)
		}
		if err != nil {
			return err
		}
	}
}

// next waits for a message. It lets the gateway go if the server shuts down and the gateway loses nothing.
func (x *exchange) next(got <-chan error) error {
	leaving := x.leaving.Done()
	if !x.mayLeave() { // asked again after the next message
		leaving = nil
	}
	select {
	case err := <-got:
		return err
	case <-leaving:
		x.let = true
		return nil
	}
}

// A gateway is what is known of the other side of a stream: where it is, and how it sends bodies.
type gateway struct {
	from                      netip.Addr
	requestMode, responseMode uint64
}

func hostOf(stream grpc.ServerStream) netip.Addr {
	if p, ok := peer.FromContext(stream.Context()); ok {
		if tcp, ok := p.Addr.(*net.TCPAddr); ok {
			return tcp.AddrPort().Addr()
		}
	}
	return netip.Addr{}
}

// showing are gateways that have shown a response. What a gateway reports of its configuration does not tell whether it
// shows the headers. The zero value is ready; safe for use by many goroutines.
type showing struct {
	mu  sync.RWMutex // guards all
	all map[gateway]struct{}
}

// maxShowing bounds them. Beyond it all are learned anew.
const maxShowing = 1000

// learn notes that a gateway shows responses.
func (s *Server) learn(g gateway) {
	if s.knows(g) {
		return
	}
	s.showing.mu.Lock()
	defer s.showing.mu.Unlock()
	if s.showing.all == nil || len(s.showing.all) >= maxShowing {
		s.showing.all = make(map[gateway]struct{})
	}
	s.showing.all[g] = struct{}{}
}

// knows reports whether a gateway has shown a response.
func (s *Server) knows(g gateway) bool {
	s.showing.mu.RLock()
	defer s.showing.mu.RUnlock()
	_, found := s.showing.all[g]
	return found
}

// grow makes the stack of a goroutine as large as a pick needs it: in several steps, deeper in the calls, that takes a
// tenth of the processor time of a request.
//
//go:noinline
func grow(n int) byte {
	var room [6 << 10]byte
	return room[n]
}

// eitherTLS takes connections with TLS and without. Most gateways dial an endpoint picker with TLS and do not verify
// its certificate, others dial it without; the protocol leaves that open.
type eitherTLS struct {
	credentials.TransportCredentials
}

// newEitherTLS returns credentials whose certificate lasts as long as the process.
func newEitherTLS() credentials.TransportCredentials {
	certificate := sync.OnceValues(selfSigned)
	return eitherTLS{credentials.NewTLS(&tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate() },
	})}
}

func selfSigned() (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"warmpath"},
		NotBefore: time.Now().AddDate(0, 0, -1), NotAfter: time.Now().AddDate(10, 0, 0),
	}
	raw, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}, nil
}

// ServerHandshake implements [credentials.TransportCredentials].
func (e eitherTLS) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	var first [1]byte
	if _, err := io.ReadFull(conn, first[:]); err != nil {
		return nil, nil, err
	}
	conn = &begun{conn, io.MultiReader(bytes.NewReader(first[:]), conn)}
	const handshake = 22 // the type of the record that begins a connection with TLS
	if first[0] == handshake {
		return e.TransportCredentials.ServerHandshake(conn)
	}
	return insecure.NewCredentials().ServerHandshake(conn)
}

// begun is a connection whose first byte was read.
type begun struct {
	net.Conn
	reader io.Reader
}

func (b *begun) Read(p []byte) (int, error) { return b.reader.Read(p) }
