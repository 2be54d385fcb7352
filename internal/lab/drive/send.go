package drive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	vllmpb "github.com/warmpath/warmpath/internal/lab/enginesim/enginepb/vllm"
	enginepb "github.com/warmpath/warmpath/internal/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/internal/lab/workload"
)

// DefaultDialect is the dialect where none is named.
const DefaultDialect = "vllm"

// answer is what came back for one request.
type answer struct {
	first   time.Time // when the first token came
	output  int       // tokens
	trailer metadata.MD
	err     error
}

// figure is a number in the trailer.
func (a *answer) figure(name string) (float64, bool) {
	v := a.trailer.Get(name)
	if len(v) == 0 {
		return 0, false
	}
	f, err := strconv.ParseFloat(v[0], 64)
	return f, err == nil
}

// sender sends a request in one dialect and reads the answer to its end.
type sender func(ctx context.Context, cc *grpc.ClientConn, model string, q *workload.Request) answer

var senders = map[string]sender{
	DefaultDialect:   sendEngine,
	"vllm-inference": sendInference,
}

// Dialects are the names that Options.Dialect may have, sorted.
func Dialects() []string { return slices.Sorted(maps.Keys(senders)) }

func senderFor(dialect string) (sender, error) {
	if dialect == "" {
		dialect = DefaultDialect
	}
	if s := senders[dialect]; s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("dialect %q is not one of %s", dialect, strings.Join(Dialects(), ", "))
}

// sendEngine speaks vllm.grpc.engine.VllmEngine.
func sendEngine(ctx context.Context, cc *grpc.ClientConn, _ string, q *workload.Request) answer {
	r := &enginepb.GenerateRequest{
		RequestId: q.ID, Stream: true,
		SamplingParams: &enginepb.SamplingParams{MaxTokens: proto.Uint32(uint32(q.OutputTokens))},
	}
	if q.Text != "" {
		r.Input = &enginepb.GenerateRequest_Text{Text: q.Text}
	} else {
		r.Input = &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: q.Tokens()}}
	}
	stream, err := enginepb.NewVllmEngineClient(cc).Generate(ctx, r)
	return receive(stream, err, func(m *enginepb.GenerateResponse, output int) int {
		if c := m.GetComplete(); c != nil {
			return max(output, int(c.GetCompletionTokens()))
		}
		return output + len(m.GetChunk().GetTokenIds())
	})
}

// sendInference speaks vllm.Inference.
func sendInference(ctx context.Context, cc *grpc.ClientConn, model string, q *workload.Request) answer {
	stream, err := vllmpb.NewInferenceClient(cc).GenerateStream(ctx, InferenceRequest(model, q))
	return receive(stream, err, func(m *vllmpb.GenerateResponse, output int) int {
		return output + int(m.GetOutputs().GetNumTokens())
	})
}

// InferenceRequest is a request of a workload in the words of vllm.Inference.
func InferenceRequest(model string, q *workload.Request) *vllmpb.GenerateRequest {
	r := &vllmpb.GenerateRequest{
		RequestId: q.ID, Model: model, Stopping: &vllmpb.StoppingCriteria{MaxNewTokens: uint32(q.OutputTokens)},
	}
	if q.Session != "" {
		r.SessionId = &q.Session
	}
	if q.Text != "" {
		r.Prompt = &vllmpb.GenerateRequest_Text{Text: q.Text}
	} else {
		r.Prompt = &vllmpb.GenerateRequest_TokenIds{TokenIds: &vllmpb.TokenIds{Ids: q.Tokens()}}
	}
	return r
}

// receive reads a stream to its end; count adds the tokens of a message to those before.
func receive[M any](stream grpc.ServerStreamingClient[M], err error, count func(m *M, output int) int) (a answer) {
	if a.err = err; err != nil {
		return a
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			a.trailer = stream.Trailer()
			if !errors.Is(err, io.EOF) {
				a.err = err
			} else if a.output == 0 {
				a.err = errors.New("the answer has no tokens")
			}
			return a
		}
		if a.output = count(m, a.output); a.first.IsZero() && a.output > 0 {
			a.first = time.Now()
		}
	}
}
