package tests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
)

// Engines publish no KV events: a client that has just started finds the prefix that another client sent.
func TestClientsShareTheirRoutes(t *testing.T) {
	fleet := "    policy: {kv_aware: {block_tokens: 16}}\n    replicas:"
	for range 3 {
		fleet += fmt.Sprintf("\n    - address: %q", simulate(t, "", nil).rpc.addr())
	}
	at, kill := lookasideWith(t, "", fleet)
	defer kill()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	prompt := make([]uint32, 1100)
	for i := range prompt {
		prompt[i] = uint32(i)
	}
	ask := func(conn *grpc.ClientConn, prompt []uint32) (d client.Decision) {
		stream, err := enginepb.NewVllmEngineClient(conn).Generate(client.WithDecision(ctx, &d), &enginepb.GenerateRequest{
			Input: &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: prompt}},
		})
		for err == nil {
			_, err = stream.Recv()
		}
		require.True(t, errors.Is(err, io.EOF), "%v", err)
		return d
	}
	dial := func() *grpc.ClientConn {
		conn, err := client.New("warmpath://"+at+"/chat", grpc.WithTransportCredentials(insecure.NewCredentials()),
			client.WithServerDialOptions(grpc.WithTransportCredentials(insecure.NewCredentials())))
		require.NoError(t, err)
		return conn
	}
	first := dial()
	defer first.Close()
	sent := ask(first, prompt)
	require.NotEqual(t, policy.ReasonPrefixMatch, sent.Reason)

	var found client.Decision
	for ctx.Err() == nil && found.Reason != policy.ReasonPrefixMatch { // the first client has not reported yet, or a connection is not there yet
		second := dial()
		ask(second, prompt[1000:]) // now it has the server's report
		found = ask(second, prompt)
		require.NoError(t, second.Close())
	}
	require.Equal(t, policy.ReasonPrefixMatch, found.Reason)
	require.Equal(t, 2*policy.SuperblockTokens, found.MatchedTokens, "reported in superblocks, not its own")
}
