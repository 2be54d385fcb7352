package grpcserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/lab/enginesim"
	sglangpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/sglang/grpc/scheduler"
	vllmpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/lab/enginesim/kvpublish"
	"github.com/warmpath/warmpath/lab/enginesim/kvtransfer"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// Trailers with the engine's own figures.
const (
	// TrailerTTFT is the time to the first token in milliseconds of engine time.
	TrailerTTFT = "x-engine-ttft-ms"
	// TrailerE2E is the time from arrival to end in milliseconds of engine time.
	TrailerE2E = "x-engine-e2e-ms"
	// TrailerComputed is the tokens computed in prefill.
	TrailerComputed = "x-engine-computed-tokens"
	// TrailerCached is the prompt tokens found in the cache.
	TrailerCached = "x-engine-cached-tokens"
)

// MaxMessage is the largest message that the server takes, as SMG's servicers do.
const MaxMessage = 256 << 20

// version as in GetLoads.
const version = "warmpath-enginesim"

// Config describes a server. The zero value is an h100-14b in real time.
type Config struct {
	// Engine is the engine. Its Listener is called under the engine's lock.
	Engine enginesim.Config
	// Speed and Virtual are its pace: see enginesim.Pace.
	Speed   float64
	Virtual bool
	// KVEvents is served by SubscribeKvEvents, and is the Engine's Listener unless that is another, which then passes
	// events on; nil means that the engine publishes none.
	KVEvents *kvpublish.Log
	// KVHistory begins each stream of events with all batches that KVEvents still has, as SMG's server in Rust does;
	// false sends only later ones, as SMG's server in Python does.
	KVHistory bool
	// EarlyHeaders sends the response headers before the first token, as Rust servers do.
	EarlyHeaders bool
	// ServedModel is the model's name; empty means the preset's. Requests for other models are refused
	// where the name was given.
	ServedModel string
	// MaxOngoing refuses requests beyond this many; 0 means no bound.
	MaxOngoing int
	// IgnoreCancel lets the engine go on with a request whose client has ended the call, until
	// Abort names it, as engines do that do not notice.
	IgnoreCancel bool
	// Disaggregation makes it one of prefill and decode engines; nil means that it ignores what splits requests.
	Disaggregation *Disaggregation
}

// Stats are a server's figures at one moment.
type Stats struct {
	// Now is the engine's time.
	Now time.Duration
	// Ongoing counts calls accepted and not ended, Rejected those refused because of MaxOngoing.
	Ongoing, Rejected int
	// Load is the engine's load.
	Load enginesim.Load
	// Engine are the engine's counters.
	Engine enginesim.Stats
	// Whole, Prefills and Decodes count accepted calls, by what they were of a request.
	Whole, Prefills, Decodes int
	// KV is what became of the KV of the prefill legs.
	KV kvtransfer.Stats
}

// Server serves one engine.
type Server struct {
	cfg      Config
	addr     net.Addr
	driver   *enginesim.Driver
	kv       *kvSide        // nil without a role
	work     sync.WaitGroup // the server's goroutine, and those of legs
	grpc     *grpc.Server
	health   *health.Server
	fresh    atomic.Uint64   // ids given to requests without one
	stopping context.Context // ends with Stop and Kill: streams of events would never end by themselves
	stop     context.CancelFunc
	killed   context.Context // ends with Kill
	kill     context.CancelFunc

	mu      sync.Mutex // guards what follows; nothing is called under it but map operations
	counts  Stats      // Ongoing, Rejected, Whole, Prefills and Decodes
	tracked map[*tracked]struct{}
}

// tracked is a call, or a prefill leg, that a client may end by its request's id. Clients may use an id twice.
type tracked struct {
	id  string
	end func()
}

// Start makes an engine and serves it on the listener, which it owns from then on, also if it fails.
func Start(lis net.Listener, c Config) (*Server, error) {
	if c.MaxOngoing < 0 {
		lis.Close()
		return nil, fmt.Errorf("grpcserver: MaxOngoing %d is negative", c.MaxOngoing)
	}
	if c.KVEvents != nil && c.Engine.Listener == nil {
		c.Engine.Listener = c.KVEvents
	}
	d, err := enginesim.NewDriver(c.Engine, enginesim.Pace{Speed: c.Speed, Virtual: c.Virtual})
	if err != nil {
		lis.Close()
		return nil, err
	}
	s := &Server{
		cfg: c, addr: lis.Addr(), driver: d, health: health.NewServer(),
		grpc:    grpc.NewServer(grpc.MaxRecvMsgSize(MaxMessage), grpc.MaxSendMsgSize(MaxMessage), grpc.WaitForHandlers(true)),
		tracked: map[*tracked]struct{}{},
	}
	if s.kv, err = newKVSide(s); err != nil {
		lis.Close()
		d.Close()
		return nil, err
	}
	s.killed, s.kill = context.WithCancel(context.Background())
	s.stopping, s.stop = context.WithCancel(s.killed)
	enginepb.RegisterVllmEngineServer(s.grpc, &engineService{srv: s})
	vllmpb.RegisterInferenceServer(s.grpc, &inferenceService{srv: s})
	sglangpb.RegisterSglangSchedulerServer(s.grpc, &sglangService{srv: s})
	healthpb.RegisterHealthServer(s.grpc, s.health)
	for _, name := range []string{enginepb.VllmEngine_ServiceDesc.ServiceName, vllmpb.Inference_ServiceDesc.ServiceName,
		sglangpb.SglangScheduler_ServiceDesc.ServiceName} {
		s.health.SetServingStatus(name, healthpb.HealthCheckResponse_SERVING)
	}
	reflection.Register(s.grpc)
	s.work.Go(func() { _ = s.grpc.Serve(lis) }) // until Stop or Kill; where the listener fails, it is as good as killed
	return s, nil
}

// Addr is where the server listens.
func (s *Server) Addr() net.Addr { return s.addr }

// Stats are the figures of this moment.
func (s *Server) Stats() Stats {
	now, l, st := s.driver.Snapshot()
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.counts
	all.Now, all.Load, all.Engine = now, l, st
	if s.kv != nil {
		all.KV = s.kv.source.Stats()
	}
	return all
}

// Stop reports NOT_SERVING, takes no more calls and lets those that are there end, until the context ends: then
// they are cut.
func (s *Server) Stop(ctx context.Context) {
	s.health.Shutdown()
	s.stop()
	stop := context.AfterFunc(ctx, func() {
		s.kill()
		s.grpc.Stop()
	})
	s.grpc.GracefulStop()
	stop()
	s.Kill()
}

// Kill closes every connection at once, as a crash would.
func (s *Server) Kill() {
	s.cut()
	s.work.Wait()
	s.driver.Close()
}

// Crash is Kill that does not wait until the calls are gone, for Disaggregation.Moment. Kill must follow.
func (s *Server) Crash() {
	s.kill()
	s.work.Go(s.cut)
}

// cut closes every connection and waits for the handlers.
func (s *Server) cut() {
	s.kill()
	s.grpc.Stop()
	if s.kv != nil {
		s.kv.source.Close()
	}
}

// model is the name of the model.
func (s *Server) model() string { return cmp.Or(s.cfg.ServedModel, s.driver.Config().Preset) }

// enter counts a call in, which is a leg or a whole request, or refuses it because the server is full.
func (s *Server) enter(ctx context.Context, l *leg) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.counts.Ongoing; s.cfg.MaxOngoing > 0 && n >= s.cfg.MaxOngoing {
		s.counts.Rejected++
		b, _ := proto.Marshal(&warmpathv1.Rejection{Ongoing: uint32(n), MaxOngoing: uint32(s.cfg.MaxOngoing)}) // two numbers
		_ = grpc.SetTrailer(ctx, metadata.Pairs(warmpathv1.TrailerRejection, string(b)))                       // fails outside of a call only
		return status.Errorf(codes.ResourceExhausted, "%d requests are ongoing, the most is %d", n, s.cfg.MaxOngoing)
	}
	s.counts.Ongoing++
	switch {
	case l == nil:
		s.counts.Whole++
	case l.prefill:
		s.counts.Prefills++
	default:
		s.counts.Decodes++
	}
	return nil
}

func (s *Server) leave() {
	s.mu.Lock()
	s.counts.Ongoing--
	s.mu.Unlock()
}

// abort ends every call and every prefill leg with this id.
func (s *Server) abort(id string) {
	s.mu.Lock()
	all := maps.Clone(s.tracked)
	s.mu.Unlock()
	for t := range all {
		if t.id == id {
			t.end()
		}
	}
}

// track lets abort find a call or a leg until the function that it returns is called.
func (s *Server) track(id string, end func()) (forget func()) {
	t := &tracked{id, end}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tracked[t] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.tracked, t)
	}
}

// statusOf is the status of an error of the engine or of a context.
func statusOf(err error) error {
	switch {
	case errors.Is(err, enginesim.ErrTooLong), errors.Is(err, enginesim.ErrInvalid):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, enginesim.ErrClosed):
		return status.Error(codes.Unavailable, err.Error())
	default:
		return status.FromContextError(err).Err()
	}
}
