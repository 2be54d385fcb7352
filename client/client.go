// Package client is what an application imports: it dials a channel whose calls
// go to the replica that is warm for them.
//
//	conn, err := client.New("warmpath:///10.0.0.1:50051,10.0.0.2:50051",
//		grpc.WithTransportCredentials(insecure.NewCredentials()))
//	stub := pb.NewInferenceClient(conn)
//
// The rule. A unary call, and a server-streaming call, is routed by its request
// message: opening the stream waits for the first message, the request key is
// taken from it by the method's dialect, a replica is reserved, and only then is
// gRPC asked for a stream. Client-streaming and bidirectional calls open at once
// and are routed by metadata and context alone, unless their dialect asks to be
// deferred.
//
// Until the first response message the call may be retried on another replica, within the channel's retry budget and
// up to max_attempts of [github.com/warmpath/warmpath/balancer/policy.Config], unless the status speaks of the request,
// or two replicas failed it alike. If the first message is late, and the config has first_token_timeout, another replica
// gets the request. With a retryPolicy for the method in the service config, gRPC's own retries are used instead. A
// server stream that breaks later goes on at another replica, unless max_resumes is "off", if its dialect is one whose
// output can be put behind the prompt.
//
// Guarantees. A reservation never outlives its call: it ends with the last message,
// or with the call's context. A stream that the application drops before either is
// cancelled when the garbage collector finds it, unless it is a client-streaming
// call after CloseSend: that one goes on to its answer. So keep a reference to a
// stream while it is needed, even if only its context is used. A prompt is
// not kept alive past the first response message, except for resume. Options of gRPC
// and of other interceptors work as without warmpath.
package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"weak"

	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/balancer"
	"github.com/warmpath/warmpath/internal/call"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/resolver"
)

// retryBuffer is how much of a request gRPC may hold for its transparent
// retries: its default of 256 KiB is less than a long prompt.
const retryBuffer = 64 << 20

// retryBufferOption is the option for retryBuffer. It is a type of its own, so that calls that are not tried again
// can do without.
type retryBufferOption struct {
	grpc.MaxRetryRPCBufferSizeCallOption
}

func isRetryBuffer(o grpc.CallOption) bool {
	_, ok := o.(retryBufferOption)
	return ok
}

// New returns a channel to the target, as [grpc.NewClient] does, whose calls are
// routed by warmpath. Among opts may be warmpath's own options and any of
// gRPC's; where both set the same, gRPC's own option counts. Nothing is
// connected yet. The error names what is wrong with the target or the options.
//
// Interceptors among opts run inside warmpath's, once for each attempt: they see the attempts of a call, and so do
// stats handlers. To see calls, wrap the stub or the ClientConn. An interceptor that makes retries itself takes the
// place of warmpath's retries for a call once it has made one; it should rather be left out, since warmpath's go to
// another replica.
func New(target string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	if err := resolver.Check(target); err != nil {
		return nil, err
	}
	set, err := newChannels(opts)
	if err != nil {
		return nil, err
	}
	if set.options.listed {
		return nil, errors.New("warmpath: the options of client.New have the list of client.DialOptions among them, " +
			"which New adds itself; give New what DialOptions was given")
	}
	scheme, host := splitTarget(target)
	if set.needsServer && (scheme != resolver.Scheme || host == "") {
		return nil, fmt.Errorf("warmpath: config: %w", balancer.ErrNeedsServer)
	}
	h := set.newHandle()
	dial := set.dialOptions()
	if namesFleet(scheme) {
		// Behind an HTTP proxy gRPC would drop the fleet's attributes of replicas.
		dial = append(dial, grpc.WithNoProxy())
	}
	dial = append(dial, opts...)
	dial = append(dial, grpc.WithResolvers(handleResolvers(h, target, set.options.resolvers())...))
	cc, err := grpc.NewClient(target, dial...)
	if err != nil {
		return nil, err
	}
	if err := checkScheme(target, cc); err != nil {
		return nil, errors.Join(err, cc.Close())
	}
	set.keep(cc, h)
	set.sole.Store(h)
	return cc, nil
}

// checkScheme refuses what gRPC would look up in DNS by default: an empty target, one whose scheme has no resolver, and
// a list of addresses.
func checkScheme(target string, cc *grpc.ClientConn) error {
	if !strings.HasSuffix(cc.CanonicalTarget(), ":///"+target) {
		return nil
	}
	scheme, _, ok := strings.Cut(target, "://")
	switch {
	case target == "":
		return errors.New("warmpath: the target is empty; want warmpath:///host:port,host:port, dns:///host:port or the like")
	case ok:
		return fmt.Errorf("warmpath: %q: no resolver has the scheme %q; "+
			"want warmpath:///host:port,host:port, dns:///host:port or the like", target, scheme)
	case strings.Contains(target, ","):
		return fmt.Errorf("warmpath: %q: a list of replicas is written warmpath:///host:port,host:port", target)
	}
	return nil
}

// DialOptions returns what New adds, for code that calls [grpc.NewClient]
// itself. One list may serve several channels. Put it first, so that the options
// after it count. It panics on an invalid option, which is a mistake in the
// program; New returns the mistake as an error.
func DialOptions(opts ...Option) []grpc.DialOption {
	set, err := newChannels(opts)
	if err != nil {
		panic(err)
	}
	listed := option{set: func(o *options) { o.listed = true }}
	return append(set.dialOptions(), grpc.WithResolvers(set.options.resolvers()...), listed)
}

// channels are the channels dialled with one list of options.
type channels struct {
	options       options
	serviceConfig string
	needsServer   bool // the config decides nothing without a look-aside server
	telemetry     *telemetry.Recorder

	// handles maps weak.Pointer[grpc.ClientConn] to *call.Handle: a channel
	// that the application dropped takes its handle along.
	handles sync.Map
	// sole is the handle of the one channel that New made with them, else nil: its calls
	// need no look-up.
	sole atomic.Pointer[call.Handle]
}

// newChannels takes warmpath's own options out of a list.
func newChannels[O grpc.DialOption](opts []O) (*channels, error) {
	c := &channels{}
	for _, o := range opts {
		if own, ok := any(o).(Option); ok {
			own.apply(&c.options)
		}
	}
	config, err := c.options.config()
	if err != nil {
		return nil, err
	}
	c.serviceConfig = `{"loadBalancingConfig":[{"` + balancer.Name + `":` + string(config) + `}]}`
	var adoption policy.Adoption
	if err := json.Unmarshal(config, &adoption); err != nil {
		return nil, fmt.Errorf("warmpath: config: %w", err)
	}
	c.needsServer = balancer.NeedsServer(&adoption)
	c.telemetry = telemetry.Default()
	if c.options.meters != nil {
		if c.telemetry, err = telemetry.New(c.options.meters); err != nil {
			return nil, fmt.Errorf("warmpath: %w", err)
		}
	}
	return c, nil
}

func (c *channels) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithDefaultServiceConfig(c.serviceConfig),
		grpc.WithDefaultCallOptions(retryBufferOption{
			grpc.MaxRetryRPCBufferSizeCallOption{MaxRetryRPCBufferSize: retryBuffer},
		}),
		grpc.WithChainUnaryInterceptor(c.unary),
		grpc.WithChainStreamInterceptor(c.stream),
	}
}

func (c *channels) newHandle() *call.Handle {
	h := call.NewHandle(c.telemetry, c.options.logger)
	h.Dialects = c.options.dialects
	return h
}

// keep remembers the handle of a channel for as long as the channel is reachable.
func (c *channels) keep(cc *grpc.ClientConn, h *call.Handle) *call.Handle {
	h.SetConn(cc)
	ref := weak.Make(cc)
	got, loaded := c.handles.LoadOrStore(ref, h)
	if !loaded {
		runtime.AddCleanup(cc, func(ref weak.Pointer[grpc.ClientConn]) {
			if h, ok := c.handles.LoadAndDelete(ref); ok {
				go h.(*call.Handle).Close()
			}
		}, ref)
	}
	return got.(*call.Handle)
}

// handle returns the handle of the channel that a call is made on.
func (c *channels) handle(cc *grpc.ClientConn) *call.Handle {
	if h := c.sole.Load(); h != nil {
		return h
	}
	if h, ok := c.handles.Load(weak.Make(cc)); ok {
		return h.(*call.Handle)
	}
	return c.keep(cc, c.newHandle())
}

// Errors of calls, found with [errors.Is] in the error that a stub returns, which is a gRPC
// status too, with a message that describes what happened.
var (
	// ErrRetryBudget: the call could have been retried, but the channel has made as many
	// retries as retry_ratio allows. The code is that of the attempt, as a rule UNAVAILABLE.
	ErrRetryBudget = call.ErrRetryBudget
)
