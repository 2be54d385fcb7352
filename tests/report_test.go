package tests

import (
	"context"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/fleet"
	routerload "github.com/warmpath/warmpath/internal/router/load"
	"github.com/warmpath/warmpath/internal/telemetry"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// listener is a policy that picks the least loaded replica and a fixed rank, and records the reported state of the
// replicas.
type listener struct {
	mu      sync.Mutex
	rank    int
	ongoing map[string]int   // requests of other clients, at the last pick
	loads   map[string]int64 // their tokens
	sizes   map[string]int
}

func (l *listener) choose(q *policy.Request, v policy.View) policy.Decision {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range v.Replicas() {
		l.ongoing[r.ID], l.loads[r.ID] = r.PeerLoad()
	}
	r := v.LeastLoaded(q)
	if r == nil {
		return policy.Wait()
	}
	d := policy.To(r, policy.ReasonLeastLoaded)
	d.SetRank(l.rank)
	return d
}

func (l *listener) capacityChanged(id string, kvTokens int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sizes[id] = kvTokens
}

// policies counts the registered policies of tests: none can be unregistered.
var policies atomic.Int64

// unique returns a name that no other policy has.
func unique(name string) string { return fmt.Sprintf("%s_%d_of_tests", name, policies.Add(1)) }

// listening registers a policy for one test and returns it with its config.
func listening(name string, rank int) (*listener, string) {
	name = unique(name)
	l := &listener{rank: rank, ongoing: map[string]int{}, loads: map[string]int64{}, sizes: map[string]int{}}
	policy.Register(name, func(struct{}) (policy.Policy, error) {
		return policy.Policy{
			Uses: policy.UsesLoad, Choose: l.choose, Observer: policy.Observer{CapacityChanged: l.capacityChanged},
		}, nil
	})
	return l, `{"` + name + `":{}}`
}

// orca is a trailer with an OrcaLoadReport that has these named metrics.
func orca(metrics map[string]float64) metadata.MD {
	var b []byte
	for name, value := range metrics {
		var e []byte
		e = protowire.AppendString(protowire.AppendTag(e, 1, protowire.BytesType), name)
		e = protowire.AppendFixed64(protowire.AppendTag(e, 2, protowire.Fixed64Type), math.Float64bits(value))
		b = protowire.AppendBytes(protowire.AppendTag(b, 8, protowire.BytesType), e)
	}
	return metadata.Pairs("endpoint-load-metrics-bin", string(b))
}

// The report in the trailer of one call is in effect for the next call.
func TestOrcaTrailersAreLoad(t *testing.T) {
	md := orca(map[string]float64{"num_requests_running": 3, "waiting_uncached_tokens": 7000, "max_token_capacity": 4096})
	for name, call := range map[string]func(*grpc.ClientConn, context.Context) error{
		"unary": func(cc *grpc.ClientConn, ctx context.Context) error {
			_, err := testpb.NewTestServiceClient(cc).UnaryCall(ctx, simple("x"))
			return err
		},
		"streaming": func(cc *grpc.ClientConn, ctx context.Context) error {
			s, err := testpb.NewTestServiceClient(cc).StreamingOutputCall(ctx, prompt("x"))
			for err == nil {
				_, err = s.Recv()
			}
			if err != io.EOF {
				return err
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			rs := make([]*replica, 2)
			for i := range rs {
				r := &replica{}
				r.unary = func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
					_ = grpc.SetTrailer(ctx, md)
					return &testpb.SimpleResponse{Username: r.addr}, nil
				}
				r.stream = func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
					s.SetTrailer(md)
					return s.Send(answer(r.addr))
				}
				rs[i] = start(t, r)
			}
			l, config := listening("listening_"+name, policy.AnyRank)
			cc := dial(t, target(rs...), client.WithConfig(`{"policy":`+config+`}`))
			connected(t, cc, rs)
			ctx := deadline(t)
			within(t, routerload.ReportTTL, func() {
				require.NoError(t, call(cc, client.WithPin(ctx, rs[0].addr)))
				require.NoError(t, call(cc, ctx))
			})
			l.mu.Lock()
			defer l.mu.Unlock()
			require.Equal(t, int64(7000), l.loads[rs[0].addr])
			require.Equal(t, 4096, l.sizes[rs[0].addr])
		})
	}
}

// The rank that the policy chose reaches a replica with several ranks, on the attempt and on its span, unless the
// application chose a rank.
func TestRankReachesTheReplica(t *testing.T) {
	seen := make(chan []string, 1)
	r := start(t, &replica{unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		seen <- metadata.ValueFromIncomingContext(ctx, warmpathv1.MetadataDataParallelRank)
		return &testpb.SimpleResponse{}, nil
	}})
	_, config := listening("listening_rank", 2)
	dialRanks := func(ranks int, bare bool) *grpc.ClientConn {
		res := manual.NewBuilderWithScheme("ranks")
		res.InitialState(resolver.State{Endpoints: []resolver.Endpoint{
			fleet.Endpoint(policy.Attributes{ID: "a", Address: r.addr, Ranks: ranks}),
		}})
		opts := []grpc.DialOption{grpc.WithResolvers(res)}
		if bare {
			cc, err := grpc.NewClient("ranks:///", append(opts, insecureOption(),
				grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"warmpath":{"policy":`+config+`}}]}`))...)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, cc.Close()) })
			return cc
		}
		return dial(t, "ranks:///", append(opts, client.WithConfig(`{"policy":`+config+`}`))...)
	}
	rec, tp := recorder(t)
	ctx, span := tp.Tracer("").Start(deadline(t), "call")
	for _, c := range []struct {
		ranks int
		bare  bool
		own   string
		want  []string
	}{
		{4, false, "", []string{"2"}}, {4, true, "", []string{"2"}}, {4, false, "1", []string{"1"}},
		{1, false, "", nil}, {2, false, "", nil}, // there is no rank 2 of 2
	} {
		ctx := ctx
		if c.own != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, warmpathv1.MetadataDataParallelRank, c.own)
		}
		_, err := testpb.NewTestServiceClient(dialRanks(c.ranks, c.bare)).UnaryCall(ctx, simple("x"), grpc.WaitForReady(true))
		require.NoError(t, err)
		require.Equal(t, c.want, <-seen, "%+v", c)
	}
	span.End()
	_, events := decided(rec.Ended())
	require.NotEmpty(t, events)
	require.Equal(t, int64(2), events[0][telemetry.KeyRank].AsInt64())
}
