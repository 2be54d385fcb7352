package tests

import (
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	vllmpb "github.com/warmpath/warmpath/internal/lab/enginesim/enginepb/vllm"
	"github.com/warmpath/warmpath/internal/lab/enginesim/grpcserver"
	"github.com/warmpath/warmpath/internal/lab/workload"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// The application gets the first token of a greedy output as soon as the prefill replica has it, before the decode
// replica sends anything. The output and the usage equal those of one call.
func TestFirstTokenOfThePrefillReplica(t *testing.T) {
	for _, flow := range kvFlows {
		var request proto.Message
		switch flow.name {
		case "vllm.Inference stream":
			request = kvInference(kvRequest{"r", kvPrompt("r"), splitOutput})
		case "VllmEngine NIXL":
			request = kvEngineRequest(kvRequest{"r", kvPrompt("r"), splitOutput})
		default:
			continue
		}
		t.Run(flow.name, func(t *testing.T) {
			token := make(chan struct{})
			f := startKVFleet(t, flow, kvOptions{prefills: 1, decodes: 2, lease: long, moment: func(_ *kvEngine, m grpcserver.Moment, _ string) {
				if m == grpcserver.DecodeFirst {
					<-token
				}
			}})
			var d client.Decision
			var ids []uint32
			got := receive(client.WithDecision(deadline(t), &d), f.cc, request, func(m proto.Message) {
				if ids = append(ids, newTokens(m)...); len(ids) == 1 {
					close(token)
				}
			})
			require.Equal(t, io.EOF, got.err)
			require.Equal(t, kvOutput("r", splitOutput), ids)
			require.Equal(t, "p0", d.Prefill)
			require.Zero(t, d.Resumed)
			require.Equal(t, splitPrompt, d.Usage.PromptTokens)
			require.Equal(t, splitOutput, d.Usage.OutputTokens)
			f.nothingReserved()
		})
	}
}

// The decode replica sends all tokens of a sampled output.
func TestSampledFirstToken(t *testing.T) {
	var sent atomic.Bool // by the decode replica
	flow := kvFlows[2]
	f := startKVFleet(t, flow, kvOptions{prefills: 1, decodes: 1, lease: long, moment: func(_ *kvEngine, m grpcserver.Moment, _ string) {
		sent.Store(sent.Load() || m == grpcserver.DecodeFirst)
	}})
	q, first := kvEngineRequest(kvRequest{"r", kvPrompt("r"), splitOutput}), true
	q.SamplingParams.Temperature = nil
	got := receive(deadline(t), f.cc, q, func(proto.Message) {
		require.True(t, !first || sent.Load())
		first = false
	})
	require.Equal(t, io.EOF, got.err)
	f.nothingReserved()
}

// otherToken is a prefill replica whose first token differs from the decode replicas' first token.
type otherToken struct {
	vllmpb.UnimplementedInferenceServer
	addr string
}

const another = 7 // the token

func (o *otherToken) GenerateStream(q *vllmpb.GenerateRequest, s grpc.ServerStreamingServer[vllmpb.GenerateResponse]) error {
	return s.Send(&vllmpb.GenerateResponse{
		PromptInfo: &vllmpb.PromptInfo{NumPromptTokens: uint32(len(q.GetTokenIds().GetIds()))},
		Outputs: &vllmpb.Output{Text: workload.TokenText(another), NumTokens: 1, TokenIds: []uint32{another},
			FinishInfo: &vllmpb.FinishInfo{NumOutputTokens: 1, KvTransferParams: handed(o.addr)}},
	})
}

// If the decode replica has another first token, the output follows the token that the application already has.
func TestFirstTokenThatDiffers(t *testing.T) {
	decodes, _ := breakings(t, 2, dying(0))
	lis := listenLoopback(t)
	p := &otherToken{addr: lis.Addr().String()}
	s := grpc.NewServer()
	vllmpb.RegisterInferenceServer(s, p)
	go func() { _ = s.Serve(lis) }()
	t.Cleanup(s.Stop)
	fleet := []policy.Attributes{{ID: "p", Address: p.addr, Role: policy.RolePrefill, Weight: 100}}
	for i, b := range decodes {
		fleet = append(fleet, policy.Attributes{ID: fmt.Sprint("d", i), Address: b.addr, Role: policy.RoleDecode, Weight: 1})
	}
	m := newMeter(t)
	cc := dial(t, "differs:///x", grpc.WithResolvers(newDirectory("differs", members(fleet...))),
		client.WithConfig(`{"policy":{"prefix_cache_affinity":{}}}`), m.option)
	for _, a := range fleet[1:] {
		eventually(t, "connection to "+a.ID, func() bool {
			return receive(client.WithPin(deadline(t), a.ID), cc, request(), nothing).err == io.EOF
		})
	}
	var d client.Decision
	var ids []uint32
	var text strings.Builder
	eventually(t, "a request in two legs", func() bool {
		for _, b := range decodes {
			b.requests()
		}
		ids = nil
		text.Reset()
		got := receive(client.WithDecision(deadline(t), &d), cc, request(), func(m proto.Message) {
			ids = append(ids, newTokens(m)...)
			text.WriteString(m.(*vllmpb.GenerateResponse).GetOutputs().GetText())
		})
		return got.err == io.EOF && d.Resumed == 1
	})
	require.EqualValues(t, another, ids[0])
	require.Len(t, ids, 50)
	require.True(t, strings.HasPrefix(text.String(), workload.TokenText(another)))
	require.Equal(t, 4000, d.Usage.PromptTokens)
	require.Equal(t, 50, d.Usage.OutputTokens)
	require.EqualValues(t, 1, m.sum(t, "warmpath.resumes", telemetry.KeyReason.String(telemetry.DidResume)))
	var last *vllmpb.GenerateRequest
	for _, b := range decodes {
		for _, q := range b.requests() {
			if q := q.(*vllmpb.GenerateRequest); len(q.GetTokenIds().GetIds()) == 4001 {
				last = q
			}
		}
	}
	require.EqualValues(t, another, last.GetTokenIds().GetIds()[4000])
	require.EqualValues(t, 49, last.GetStopping().GetMaxNewTokens())
	eventually(t, "nothing is reserved", func() bool { return m.ongoing(t) == 0 })
}
