package drive

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/lab/workload"
)

// modelOf is an engine that tells the size of its vocabulary, and remembers the prompts.
type modelOf struct {
	enginepb.UnimplementedVllmEngineServer
	vocabulary uint32

	mu      sync.Mutex // guards prompts
	prompts map[string][]uint32
}

func (m *modelOf) GetModelInfo(context.Context, *enginepb.GetModelInfoRequest) (*enginepb.GetModelInfoResponse, error) {
	return &enginepb.GetModelInfoResponse{VocabSize: m.vocabulary}, nil
}

func (m *modelOf) Generate(q *enginepb.GenerateRequest, s grpc.ServerStreamingServer[enginepb.GenerateResponse]) error {
	m.mu.Lock()
	m.prompts[q.GetRequestId()] = q.GetTokenized().GetInputIds()
	m.mu.Unlock()
	return s.Send(&enginepb.GenerateResponse{Response: &enginepb.GenerateResponse_Complete{
		Complete: &enginepb.GenerateComplete{CompletionTokens: 1},
	}})
}

// Prompts have token ids of the model, whose number the servers tell unless the options do. Shared prefixes are kept.
func TestPromptsAreOfTheVocabulary(t *testing.T) {
	rs := requests(t, workload.Spec{Name: "hot-prefix", Rate: 10, Duration: 2 * time.Second})
	for name, tt := range map[string]struct{ told, set, want uint32 }{
		"as the server tells": {4096, 0, 4096},
		"as the options say":  {4096, 1000, 1000},
		"unknown":             {0, 0, 1 << 31},
	} {
		t.Run(name, func(t *testing.T) {
			lis, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			m := &modelOf{vocabulary: tt.told, prompts: make(map[string][]uint32)}
			srv := grpc.NewServer()
			enginepb.RegisterVllmEngineServer(srv, m)
			go func() { _ = srv.Serve(lis) }()
			defer srv.Stop()
			ss, err := Run(t.Context(), rs, Options{
				Target: "warmpath:///" + lis.Addr().String(), Clients: 1, Speed: 100, Model: Model{Vocabulary: tt.set},
			})
			require.NoError(t, err)
			for _, s := range ss {
				require.NoError(t, s.Err)
			}
			require.Len(t, m.prompts, len(rs))
			first := m.prompts[rs[0].ID]
			for i := range rs {
				ids, plain := m.prompts[rs[i].ID], rs[i].Tokens()
				require.Len(t, ids, rs[i].PromptTokens)
				require.Less(t, slices.Max(ids), tt.want)
				shared := 0
				for shared < len(plain) && plain[shared] == rs[0].Tokens()[shared] {
					shared++
				}
				require.Equal(t, first[:shared], ids[:shared])
			}
			if tt.want == 1<<31 {
				require.Equal(t, rs[0].Tokens(), first)
			}
		})
	}
}
