package tests

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
)

// A colon may be part of a model's name. What stands behind a colon is an adapter if no replica declares the whole.
func TestModelsWithAColon(t *testing.T) {
	rs := replicas(t, 3)
	cc := dial(t, "colon:///x", grpc.WithResolvers(newDirectory("colon", members(
		policy.Attributes{ID: rs[0].addr, Address: rs[0].addr, Models: []string{"gpt-oss:20b"}},
		policy.Attributes{ID: rs[1].addr, Address: rs[1].addr, Models: []string{"gpt-oss:120b"}},
		policy.Attributes{ID: rs[2].addr, Address: rs[2].addr, Models: []string{"llama"}, Adapters: []string{"sql"}},
	))), client.WithDialects(dialect.Dialect{Methods: []string{unaryMethod}, JSONBody: "3.2"}))
	connected(t, cc, rs)
	for i := range 40 {
		for model, want := range map[string]*replica{"gpt-oss:20b": rs[0], "gpt-oss:120b": rs[1], "llama": rs[2], "llama:sql": rs[2]} {
			body := fmt.Sprintf(`{"model":%q,"prompt":"question %d"}`, model, i)
			reply, err := testpb.NewTestServiceClient(cc).UnaryCall(deadline(t), simple(body))
			require.NoError(t, err)
			require.Equal(t, want.addr, reply.Username, model)
		}
	}
}
