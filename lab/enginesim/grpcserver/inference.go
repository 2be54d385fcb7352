package grpcserver

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/lab/enginesim"
	vllmpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm"
	"github.com/warmpath/warmpath/lab/workload"
)

// defaultNewTokens is the Rust frontend's.
const defaultNewTokens = 20

// inferenceService is vllm.Inference.
type inferenceService struct {
	vllmpb.UnimplementedInferenceServer
	srv *Server
}

// Generate implements the service.
func (s *inferenceService) Generate(ctx context.Context, r *vllmpb.GenerateRequest) (*vllmpb.GenerateResponse, error) {
	var out *vllmpb.GenerateResponse
	err := s.generate(ctx, r, func(c *enginesim.Call, l *leg, _, to int, done bool) error {
		if done {
			out = response(c, l, 0, to, true)
			out.PromptInfo = promptInfo(c)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// GenerateStream implements the service.
func (s *inferenceService) GenerateStream(r *vllmpb.GenerateRequest,
	stream grpc.ServerStreamingServer[vllmpb.GenerateResponse]) error {
	first := true
	return s.generate(stream.Context(), r, func(c *enginesim.Call, l *leg, from, to int, done bool) error {
		for i := from; i < to || (done && i == to); i++ {
			last := done && i >= to-1
			m := response(c, l, i, min(i+1, to), last)
			if first {
				m.PromptInfo, first = promptInfo(c), false
			}
			if err := stream.Send(m); err != nil || last {
				return err
			}
		}
		return nil
	})
}

func (s *inferenceService) generate(ctx context.Context, r *vllmpb.GenerateRequest,
	on func(c *enginesim.Call, l *leg, from, to int, done bool) error,
) error {
	if r.GetText() == "" && len(r.GetTokenIds().GetIds()) == 0 {
		return status.Error(codes.InvalidArgument, "the request has neither token_ids nor text")
	}
	output := int(r.GetStopping().GetMaxNewTokens())
	if output == 0 {
		output = defaultNewTokens
	}
	l, err := s.srv.kv.structLeg(r.GetKv().GetKvTransferParams(), r.GetRequestId(), output)
	if err != nil {
		return err
	}
	return s.srv.run(ctx, prompt{
		leg: l, id: r.GetRequestId(), ids: r.GetTokenIds().GetIds(), text: r.GetText(), output: output, model: r.GetModel(),
		adapter: r.GetLoraName(), salt: r.GetKv().GetCacheSalt(), bypass: r.GetKv().GetBypassPrefixCache(),
	}, func(c *enginesim.Call, from, to int, done bool) error { return on(c, l, from, to, done) })
}

func promptInfo(c *enginesim.Call) *vllmpb.PromptInfo {
	return &vllmpb.PromptInfo{NumPromptTokens: uint32(c.Result().PromptTokens)}
}

// response is the message with tokens [from, to), and with the end if they are the last.
func response(c *enginesim.Call, l *leg, from, to int, last bool) *vllmpb.GenerateResponse {
	var text strings.Builder
	ids := outputIDs(c, from, to)
	for _, id := range ids {
		text.WriteString(workload.TokenText(id))
	}
	out := &vllmpb.Output{Text: text.String(), NumTokens: uint32(to - from), TokenIds: ids}
	if last {
		out.FinishInfo = &vllmpb.FinishInfo{NumOutputTokens: uint32(to), FinishReason: vllmpb.FinishInfo_FINISH_REASON_LENGTH}
		if c.Result().Aborted {
			out.FinishInfo.FinishReason = vllmpb.FinishInfo_FINISH_REASON_ABORTED
		}
		if l != nil && l.answer != "" {
			out.FinishInfo.KvTransferParams = asStruct(l.answer)
		}
	}
	return &vllmpb.GenerateResponse{Outputs: out}
}
