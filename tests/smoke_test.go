package tests

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/warmpath/warmpath/client"
)

func TestSmoke(t *testing.T) {
	rs := replicas(t, 4)
	m := newMeter(t)
	cc := dial(t, target(rs...), client.WithConfig(config(`{"prefix_cache_affinity":{}}`)), m.option)
	connected(t, cc, rs)
	stub := testpb.NewTestServiceClient(cc)
	var d client.Decision
	s, err := stub.StreamingOutputCall(client.WithDecision(deadline(t), &d), prompt(strings.Repeat("hello world ", 100)))
	require.NoError(t, err)
	first, err := s.Recv()
	require.NoError(t, err)
	_, err = s.Recv()
	require.Equal(t, io.EOF, err)
	require.Equal(t, string(first.Payload.Body), d.Address)
	t.Logf("%+v", d)
	require.Zero(t, m.ongoing(t))
	var e client.Decision
	_, err = stub.UnaryCall(client.WithDecision(deadline(t), &e), simple(strings.Repeat("hello world ", 100)))
	require.NoError(t, err)
	t.Logf("%+v", e)
	require.Equal(t, d.Replica, e.Replica)
}
