package gateway

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/internal/freeport"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
)

// Streams of gRPC pass through Envoy to simulated engines. The dialect reads their prompts and their usage: a prompt
// that comes again is found in the cache of the same engine.
func TestGRPC(t *testing.T) {
	for _, m := range []modes{{}, {response: "STREAMED"}, {original: true}, {response: "NONE"}} {
		t.Run(m.String(), func(t *testing.T) {
			var replicas, addresses []string
			for i, port := range freeport.Find(3) {
				lis, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port))
				require.NoError(t, err)
				s, err := grpcserver.Start(lis, grpcserver.Config{Speed: 100})
				require.NoError(t, err)
				t.Cleanup(s.Kill)
				addresses = append(addresses, lis.Addr().String())
				replicas = append(replicas, fmt.Sprintf("{id: r%d, address: %q}", i, lis.Addr()))
			}
			p := startPickerOf(t, fmt.Sprintf("deployments: {chat: {replicas: [%s]}}\n", strings.Join(replicas, ", ")))
			e := startEnvoyOf(t, p, addresses, m)
			conn, err := grpc.NewClient(e.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, conn.Close()) })
			stub := enginepb.NewVllmEngineClient(conn)

			const prompts, tokens, output = 6, 4096, 20
			for round := range 2 {
				for n := range prompts {
					ids := make([]uint32, tokens)
					for i := range ids {
						ids[i] = uint32(n*len(ids) + i)
					}
					var trailer metadata.MD
					stream, err := stub.Generate(t.Context(), &enginepb.GenerateRequest{
						RequestId: fmt.Sprint(round, "-", n), Stream: true,
						SamplingParams: &enginepb.SamplingParams{MaxTokens: proto.Uint32(output)},
						Input:          &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: ids}},
					}, grpc.Trailer(&trailer))
					require.NoError(t, err)
					messages := 0
					for {
						if _, err = stream.Recv(); err != nil {
							break
						}
						messages++
					}
					require.ErrorIs(t, err, io.EOF)
					require.GreaterOrEqual(t, messages, output)
					cached := trailer.Get(grpcserver.TrailerCached)
					require.Len(t, cached, 1)
					require.Equal(t, round == 0, cached[0] == "0", "round %d, prompt %d: %s cached tokens", round, n, cached[0])
				}
			}
			if m.shown() {
				p.idle()
			}
		})
	}
}
