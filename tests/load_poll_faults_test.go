package tests

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/telemetry"
)

const byORCA = `"load_poll":"grpc:orca"`

// outOfBand serves ORCA reports beside the calls.
func outOfBand(handler grpc.StreamHandler) func(*grpc.Server) {
	return func(s *grpc.Server) {
		s.RegisterService(&grpc.ServiceDesc{
			ServiceName: "xds.service.orca.v3.OpenRcaService", HandlerType: (*any)(nil),
			Streams: []grpc.StreamDesc{{StreamName: "StreamCoreMetrics", Handler: handler, ServerStreams: true}},
		}, nil)
	}
}

// silent never answers, until the client gives up.
func silent(asked *atomic.Int64) func(*grpc.Server) {
	return outOfBand(func(_ any, s grpc.ServerStream) error {
		asked.Add(1)
		<-s.Context().Done()
		return s.Context().Err()
	})
}

// calls makes n calls that share no prefix.
func calls(t *testing.T, ctx context.Context, cc *grpc.ClientConn, n int) {
	t.Helper()
	stub := testpb.NewTestServiceClient(cc)
	for i := range n {
		_, err := stub.UnaryCall(ctx, simple(fmt.Sprintf("%d: a prompt", i)))
		require.NoError(t, err)
	}
}

// A replica of unknown load is not preferred to replicas that are known to be busy, and does not delay calls.
func TestLoadPollHangs(t *testing.T) {
	var asked atomic.Int64
	hung := start(t, &replica{beside: silent(&asked)})
	rs := []*replica{hung}
	for range 2 {
		p := startPolled(t)
		p.queued.Store(1_000_000)
		rs = append(rs, p.replica)
	}
	var log logged
	m := newMeter(t)
	cc, err := client.New(target(rs...), insecureOption(), m.option, client.WithLogger(log.logger()),
		client.WithConfig(config(`{"kv_aware":{}}`, byORCA)))
	require.NoError(t, err)
	defer cc.Close()
	connected(t, cc, rs)
	calls(t, deadline(t), cc, 90)
	require.Less(t, hung.calls.Load(), int64(60))
	line := "it is asked less often\" replica=" + hung.addr
	eventually(t, "it is logged", func() bool { return strings.Contains(log.String(), line) })
	require.Equal(t, 1, strings.Count(log.String(), line))
	require.Positive(t, m.sum(t, "warmpath.load_polls", telemetry.KeyReason.String(telemetry.CallFailed)))
	require.Positive(t, m.sum(t, "warmpath.load_polls", telemetry.KeyReason.String(telemetry.CallDone)))
}

// Closing a channel ends a poll under way.
func TestLoadPollAtClose(t *testing.T) {
	var asked atomic.Int64
	ended := make(chan struct{}, 2)
	rs := make([]*replica, 2)
	for i := range rs {
		rs[i] = start(t, &replica{beside: outOfBand(func(_ any, s grpc.ServerStream) error {
			asked.Add(1)
			<-s.Context().Done()
			ended <- struct{}{}
			return s.Context().Err()
		})})
	}
	cc, err := client.New(target(rs...), insecureOption(), client.WithConfig(config(`{"power_of_two_choices":{}}`, byORCA)))
	require.NoError(t, err)
	connected(t, cc, rs)
	calls(t, deadline(t), cc, 1)
	require.NoError(t, cc.Close())
	for range asked.Load() {
		<-ended
	}
}

// No replica is polled if the answer is of no use.
func TestLoadPollAsksNothing(t *testing.T) {
	for name, c := range map[string]struct {
		config string
		ctx    func(context.Context, *replica) context.Context
	}{
		"a policy that looks at no load": {config(`{"round_robin":{}}`, byORCA), nil},
		"a shadow that does":             {config(`{"round_robin":{}}`, byORCA, `"shadow_policy":{"power_of_two_choices":{}}`), nil},
		"a pin": {config(`{"power_of_two_choices":{}}`, byORCA), func(ctx context.Context, r *replica) context.Context {
			return client.WithPin(ctx, r.addr)
		}},
		"the kill switch": {config(`{"power_of_two_choices":{}}`, byORCA, `"percentage":"off"`), nil},
		"no load_poll":    {config(`{"power_of_two_choices":{}}`), nil},
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int64
			rs := []*replica{start(t, &replica{beside: silent(&asked)}), start(t, &replica{beside: silent(&asked)})}
			cc := dial(t, target(rs...), client.WithConfig(c.config))
			connected(t, cc, rs)
			ctx := deadline(t)
			if c.ctx != nil {
				ctx = c.ctx(ctx, rs[0])
			}
			calls(t, ctx, cc, 20)
			require.Zero(t, asked.Load())
		})
	}
}

// If a look-aside server shares the load, no replica is polled.
func TestLoadPollBesideAServer(t *testing.T) {
	var asked atomic.Int64
	rs := []*replica{start(t, &replica{beside: silent(&asked)}), start(t, &replica{beside: silent(&asked)})}
	at, _ := lookasideWith(t, "", "    register: true\n    replicas: [{address: \""+rs[0].addr+"\"}, {address: \""+rs[1].addr+"\"}]")
	cc := dial(t, "warmpath://"+at+"/", grpc.WithDisableServiceConfig(),
		client.WithConfig(config(`{"power_of_two_choices":{}}`, byORCA)))
	connected(t, cc, rs)
	calls(t, deadline(t), cc, 20)
	require.Zero(t, asked.Load())
}

// A custom policy has the whole deadline of the call to prepare. A policy without Preview chooses once a call and is
// not polled.
func TestLoadPollOfCustomPolicies(t *testing.T) {
	var asked, prepared, chosen atomic.Int64
	for _, previews := range []bool{false, true} {
		name := unique("prepares")
		policy.Register(name, func(struct{}) (policy.Policy, error) {
			p := policy.Policy{
				Uses: policy.UsesLoad,
				Prepare: func(ctx context.Context, _ *policy.Request, _ policy.View) error {
					if _, bound := ctx.Deadline(); !bound {
						prepared.Add(1)
					}
					return nil
				},
				Choose: func(q *policy.Request, v policy.View) policy.Decision {
					chosen.Add(1)
					return policy.To(v.LeastOfTwo(q), policy.ReasonLeastOfTwo)
				},
			}
			if previews {
				p.Preview = func(q *policy.Request, v policy.View) policy.Decision {
					return policy.To(v.LeastOfTwo(q), policy.ReasonLeastOfTwo)
				}
			}
			return p, nil
		})
		rs := []*replica{start(t, &replica{beside: silent(&asked)}), start(t, &replica{beside: silent(&asked)})}
		cc := dial(t, target(rs...), client.WithConfig(config(`{"`+name+`":{}}`, byORCA)))
		connected(t, cc, rs)
		prepared.Store(0)
		chosen.Store(0)
		calls(t, context.Background(), cc, 5)
		require.EqualValues(t, 5, prepared.Load())
		require.EqualValues(t, 5, chosen.Load())
		if !previews {
			require.Zero(t, asked.Load())
			continue
		}
		eventually(t, "replicas are asked", func() bool { return asked.Load() > 0 })
	}
}

// A change of load_poll applies to later calls, and keeps the Router.
func TestLoadPollChanges(t *testing.T) {
	var asked atomic.Int64
	rs := []*replica{start(t, &replica{beside: silent(&asked)}), start(t, &replica{beside: silent(&asked)})}
	sc := func(more string) update {
		return state(`{"loadBalancingConfig":[{"warmpath":{"policy":{"power_of_two_choices":{}}`+more+`}}]}`, rs...)
	}
	dir := newDirectory("polling", sc(""))
	cc := dial(t, "polling:///x", grpc.WithResolvers(dir))
	connected(t, cc, rs)
	calls(t, deadline(t), cc, 20)
	require.Zero(t, asked.Load())
	dir.set(sc("," + byORCA))
	eventually(t, "they are asked", func() bool {
		calls(t, deadline(t), cc, 1)
		return asked.Load() > 0
	})
}

// bearer are credentials of a channel.
type bearer struct{}

func (bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer channel"}, nil
}
func (bearer) RequireTransportSecurity() bool { return false }

// tagged records the calls that a stats handler is notified of.
type tagged struct {
	mu      sync.Mutex
	methods []string
}

func (h *tagged) note(method string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.methods = append(h.methods, method)
}

func (h *tagged) TagRPC(ctx context.Context, i *stats.RPCTagInfo) context.Context {
	h.note(i.FullMethodName)
	return ctx
}
func (h *tagged) HandleRPC(_ context.Context, s stats.RPCStats) {
	if out, ok := s.(*stats.OutHeader); ok {
		h.note(out.FullMethod)
	}
}
func (h *tagged) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (h *tagged) HandleConn(context.Context, stats.ConnStats)                       {}

// A poll has the channel's credentials and authority, and not the metadata of calls. The application's interceptors
// and stats handlers do not see it.
func TestLoadPollIsTheChannels(t *testing.T) {
	asked := make(chan metadata.MD, 100)
	serve := outOfBand(func(_ any, s grpc.ServerStream) error {
		md, _ := metadata.FromIncomingContext(s.Context())
		asked <- md
		return s.SendMsg(new(emptypb.Empty))
	})
	rs := []*replica{start(t, &replica{beside: serve}), start(t, &replica{beside: serve})}
	var seen tagged
	var log logged
	cc := dial(t, target(rs...), client.WithConfig(config(`{"power_of_two_choices":{}}`, byORCA)), grpc.WithPerRPCCredentials(bearer{}),
		grpc.WithAuthority("engine.example"), grpc.WithStatsHandler(&seen), client.WithLogger(log.logger()),
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, q, a any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
			seen.note(method)
			return invoke(metadata.AppendToOutgoingContext(ctx, "tenant", "blue"), method, q, a, cc, o...)
		}))
	connected(t, cc, rs)
	calls(t, deadline(t), cc, 1)
	md := <-asked
	require.Equal(t, []string{"Bearer channel"}, md["authorization"])
	require.Equal(t, []string{"engine.example"}, md[":authority"])
	require.NotContains(t, md, "tenant")
	eventually(t, "an answer without load is none", func() bool {
		return strings.Contains(log.String(), "neither a count of requests nor of tokens")
	})
	seen.mu.Lock()
	defer seen.mu.Unlock()
	require.NotEmpty(t, seen.methods)
	require.False(t, slices.ContainsFunc(seen.methods, func(m string) bool { return !strings.HasPrefix(m, "/grpc.testing.TestService/") }), seen.methods)
}
