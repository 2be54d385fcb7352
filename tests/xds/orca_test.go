package xds

import (
	"context"
	"net"
	"testing"

	orcapb "github.com/cncf/xds/go/xds/data/orca/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
	modelserver "github.com/warmpath/warmpath/server/replica"
)

// ORCA's generated code reads the load report that server/replica encodes by hand.
func TestLoadIsAnOrcaReport(t *testing.T) {
	m, err := modelserver.New(modelserver.Config{
		Replica:  policy.Attributes{MaxOngoing: 14},
		KVTokens: 281600,
		Load:     func() modelserver.Load { return modelserver.Load{Ongoing: 7, Waiting: 3, UncachedTokens: 1234} },
	})
	require.NoError(t, err)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer(m.ServerOptions()...)
	testpb.RegisterTestServiceServer(s, empty{})
	go func() { _ = s.Serve(lis) }() // ends with Stop
	defer s.Stop()
	cc, err := grpc.NewClient("passthrough:///"+lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer cc.Close()
	var trailer metadata.MD
	_, err = testpb.NewTestServiceClient(cc).EmptyCall(t.Context(), &testpb.Empty{}, grpc.Trailer(&trailer))
	require.NoError(t, err)

	raw := trailer.Get(warmpathv1.TrailerLoad)
	require.Len(t, raw, 1)
	var got orcapb.OrcaLoadReport
	require.NoError(t, proto.Unmarshal([]byte(raw[0]), &got))
	want := &orcapb.OrcaLoadReport{
		ApplicationUtilization: 0.5,
		NamedMetrics: map[string]float64{
			"num_requests_running": 4, "num_requests_waiting": 3, "waiting_uncached_tokens": 1234, "max_token_capacity": 281600,
		},
	}
	require.True(t, proto.Equal(want, &got), "%v", &got)
}

type empty struct {
	testpb.UnimplementedTestServiceServer
}

func (empty) EmptyCall(context.Context, *testpb.Empty) (*testpb.Empty, error) {
	return &testpb.Empty{}, nil
}
