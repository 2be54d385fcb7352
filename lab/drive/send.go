package drive

import (
	"cmp"
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

	vllmpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/lab/workload"
)

// DefaultDialect is the dialect where none is named.
const DefaultDialect = "vllm"

// Model is what the servers run.
type Model struct {
	// Name is what requests ask for, if the dialect has a field for it.
	Name string
	// Vocabulary is the number of the model's token ids: prompts have ids below it. 0 = the servers are asked with
	// GetModelInfo; if they do not tell, prompts have any ids, which simulated engines take.
	Vocabulary uint32
}

// ask fills the size of the vocabulary in, if the servers tell it.
func (m *Model) ask(ctx context.Context, cc *grpc.ClientConn) {
	if m.Vocabulary == 0 {
		info, _ := enginepb.NewVllmEngineClient(cc).GetModelInfo(ctx, &enginepb.GetModelInfoRequest{})
		m.Vocabulary = info.GetVocabSize()
	}
}

// Answer is what came back for one request.
type Answer struct {
	First   time.Time // when the first token came
	Output  int       // tokens
	Trailer metadata.MD
	Err     error
}

// Figure is a number in the trailer.
func (a *Answer) Figure(name string) (float64, bool) {
	v := a.Trailer.Get(name)
	if len(v) == 0 {
		return 0, false
	}
	f, err := strconv.ParseFloat(v[0], 64)
	return f, err == nil
}

// sender sends a request in one dialect and reads the answer to its end.
type sender func(ctx context.Context, cc *grpc.ClientConn, m Model, q *workload.Request) Answer

var senders = map[string]sender{
	DefaultDialect:   sendEngine,
	"vllm-inference": SendInference,
}

// Dialects are the names that Options.Dialect may have, sorted.
func Dialects() []string { return slices.Sorted(maps.Keys(senders)) }

func senderFor(dialect string) (sender, error) {
	if s := senders[cmp.Or(dialect, DefaultDialect)]; s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("dialect %q is not one of %s", dialect, strings.Join(Dialects(), ", "))
}

// sendEngine speaks vllm.grpc.engine.VllmEngine.
func sendEngine(ctx context.Context, cc *grpc.ClientConn, m Model, q *workload.Request) Answer {
	r := &enginepb.GenerateRequest{
		RequestId: q.ID, Stream: true,
		SamplingParams: &enginepb.SamplingParams{MaxTokens: proto.Uint32(uint32(q.OutputTokens))},
	}
	if q.Text != "" {
		r.Input = &enginepb.GenerateRequest_Text{Text: q.Text}
	} else {
		r.Input = &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: q.TokensBelow(m.Vocabulary)}}
	}
	stream, err := enginepb.NewVllmEngineClient(cc).Generate(ctx, r)
	return receive(stream, err, func(m *enginepb.GenerateResponse, output int) int {
		if c := m.GetComplete(); c != nil {
			return max(output, int(c.GetCompletionTokens()))
		}
		return output + len(m.GetChunk().GetTokenIds())
	})
}

// SendInference sends a request to vllm.Inference and reads the stream of its answer to the end.
func SendInference(ctx context.Context, cc *grpc.ClientConn, m Model, q *workload.Request) Answer {
	stream, err := vllmpb.NewInferenceClient(cc).GenerateStream(ctx, InferenceRequest(m, q))
	return receive(stream, err, func(m *vllmpb.GenerateResponse, output int) int {
		return output + int(m.GetOutputs().GetNumTokens())
	})
}

// InferenceRequest is a request of a workload in the words of vllm.Inference.
func InferenceRequest(m Model, q *workload.Request) *vllmpb.GenerateRequest {
	r := &vllmpb.GenerateRequest{
		RequestId: q.ID, Model: m.Name, Stopping: &vllmpb.StoppingCriteria{MaxNewTokens: uint32(q.OutputTokens)},
	}
	if q.Session != "" {
		r.SessionId = &q.Session
	}
	if q.Text != "" {
		r.Prompt = &vllmpb.GenerateRequest_Text{Text: q.Text}
	} else {
		r.Prompt = &vllmpb.GenerateRequest_TokenIds{TokenIds: &vllmpb.TokenIds{Ids: q.TokensBelow(m.Vocabulary)}}
	}
	return r
}

// receive reads a stream to its end; count adds the tokens of a message to those before.
func receive[M any](stream grpc.ServerStreamingClient[M], err error, count func(m *M, output int) int) (a Answer) {
	if a.Err = err; err != nil {
		return a
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			a.Trailer = stream.Trailer()
			if !errors.Is(err, io.EOF) {
				a.Err = err
			} else if a.Output == 0 {
				a.Err = errors.New("the answer has no tokens")
			}
			return a
		}
		if a.Output = count(m, a.Output); a.First.IsZero() && a.Output > 0 {
			a.First = time.Now()
		}
	}
}
