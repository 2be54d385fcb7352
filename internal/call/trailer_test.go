package call

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy/kvaware"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/router/load"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

func rejection(t testing.TB, ongoing, most uint32) string {
	t.Helper()
	b, err := proto.Marshal(&warmpathv1.Rejection{Ongoing: ongoing, MaxOngoing: most})
	require.NoError(t, err)
	return string(b)
}

// metric is an entry of named_metrics in an OrcaLoadReport.
func metric(name string, value float64) string {
	e := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name)
	e = protowire.AppendFixed64(protowire.AppendTag(e, 2, protowire.Fixed64Type), math.Float64bits(value))
	return string(protowire.AppendBytes(protowire.AppendTag(nil, 8, protowire.BytesType), e))
}

func TestReported(t *testing.T) {
	full := status.Error(codes.ResourceExhausted, "full")
	load := metric(warmpathv1.MetricRunning, 3) + metric(warmpathv1.MetricUncachedTokens, 70)
	for name, c := range map[string]struct {
		err     error
		trailer metadata.MD
		ongoing int
		tokens  int64
		refused bool
	}{
		"nothing":                    {nil, nil, 0, 0, false},
		"load":                       {nil, metadata.Pairs(warmpathv1.TrailerLoad, load), 3, 70, false},
		"rejected":                   {full, metadata.Pairs(warmpathv1.TrailerRejection, rejection(t, 9, 8)), 9, 0, true},
		"rejected with load":         {full, metadata.Pairs(warmpathv1.TrailerLoad, load, warmpathv1.TrailerRejection, rejection(t, 9, 8)), 9, 0, true},
		"rejected, by no bound":      {full, metadata.Pairs(warmpathv1.TrailerRejection, rejection(t, 9, 0)), 0, 0, false},
		"rejected, in no words":      {full, metadata.Pairs(warmpathv1.TrailerRejection, ""), 0, 0, false},
		"rejected, in broken words":  {full, metadata.Pairs(warmpathv1.TrailerRejection, "\xff"), 0, 0, false},
		"the trailer of no refusal":  {nil, metadata.Pairs(warmpathv1.TrailerRejection, rejection(t, 9, 8)), 0, 0, false},
		"the trailer of a late fail": {status.Error(codes.Internal, "x"), metadata.Pairs(warmpathv1.TrailerRejection, rejection(t, 9, 8)), 0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := kvaware.New(kvaware.Config{}.WithDefaults())
			require.NoError(t, err)
			r := policytest.NewRouter(t, p, policytest.Fleet(1))
			replica := r.View().Replicas()[0]
			done := balancer.DoneInfo{Err: c.err, Trailer: c.trailer, BytesSent: true}
			rpc := &Call{Scope: &Scope{Context: t.Context(), handle: NewHandle(nil, nil)}}
			rpc.reserved.binding = &Binding{Router: r}
			require.NoError(t, r.Reserve(t.Context(), &rpc.key.request, &rpc.reserved.held, router.How{NoWait: true}))
			rpc.Finished(done)
			require.Equal(t, c.refused, rpc.outcome.last.Refused)
			require.Equal(t, c.refused, replica.Full())
			require.Zero(t, replica.Ongoing())
			ongoing, tokens := replica.PeerLoad()
			require.Equal(t, c.ongoing, ongoing)
			require.Equal(t, c.tokens, tokens)
		})
	}
}

func FuzzRefusal(f *testing.F) {
	f.Add(rejection(f, 9, 8))
	f.Fuzz(func(t *testing.T, raw string) {
		r, ok := refusal(balancer.DoneInfo{
			Err: status.Error(codes.ResourceExhausted, "full"), Trailer: metadata.Pairs(warmpathv1.TrailerRejection, raw),
		})
		require.GreaterOrEqual(t, r.Ongoing, 0)
		if ok {
			require.Equal(t, load.Report{Ongoing: r.Ongoing, QueuedTokens: -1}, r)
		}
	})
}
