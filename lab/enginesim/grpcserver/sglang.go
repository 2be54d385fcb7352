package grpcserver

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/lab/enginesim"
	sglangpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/sglang/grpc/scheduler"
)

// defaultSGLangTokens is SGLang's.
const defaultSGLangTokens = 128

// sglangService is sglang.grpc.scheduler.SglangScheduler.
type sglangService struct {
	sglangpb.UnimplementedSglangSchedulerServer
	srv *Server
}

// Generate implements the service.
func (e *sglangService) Generate(r *sglangpb.GenerateRequest,
	stream grpc.ServerStreamingServer[sglangpb.GenerateResponse]) error {
	if rank := r.GetDataParallelRank(); rank != 0 {
		return noRank(int64(rank))
	}
	if len(r.GetTokenized().GetInputIds()) == 0 {
		return status.Error(codes.InvalidArgument, "the request has no input_ids")
	}
	output := defaultSGLangTokens
	if p := r.GetSamplingParams(); p != nil && p.MaxNewTokens != nil {
		output = int(p.GetMaxNewTokens())
	}
	var l *leg
	err := e.srv.kv.whole()
	if d := r.GetDisaggregatedParams(); d != nil {
		l, err = e.srv.kv.roomLeg(d.GetBootstrapHost(), int64(d.GetBootstrapPort()), int64(d.GetBootstrapRoom()))
	}
	if err != nil {
		return err
	}
	p := prompt{
		id: r.GetRequestId(), ids: r.GetTokenized().GetInputIds(), adapter: r.GetLoraId(), output: output, leg: l,
	}
	chunk := func(c *enginesim.Call, i int) *sglangpb.GenerateResponse {
		chunk := &sglangpb.GenerateStreamChunk{
			TokenIds: outputIDs(c, i, i+1), PromptTokens: uint32(c.Result().PromptTokens), CompletionTokens: uint32(i + 1),
			CachedTokens: uint32(c.Result().CachedTokens),
		}
		return &sglangpb.GenerateResponse{
			RequestId: r.GetRequestId(), Response: &sglangpb.GenerateResponse_Chunk{Chunk: chunk},
		}
	}
	end := func(c *enginesim.Call, begin, to int, reason string) *sglangpb.GenerateResponse {
		complete := &sglangpb.GenerateComplete{
			OutputIds: outputIDs(c, begin, to), FinishReason: reason, PromptTokens: uint32(c.Result().PromptTokens),
			CompletionTokens: uint32(to), CachedTokens: uint32(c.Result().CachedTokens),
		}
		return &sglangpb.GenerateResponse{
			RequestId: r.GetRequestId(), Response: &sglangpb.GenerateResponse_Complete{Complete: complete},
		}
	}
	return e.srv.run(stream.Context(), p, asSMG(stream, r.GetStream(), chunk, end))
}

// Abort implements the service.
func (e *sglangService) Abort(_ context.Context, r *sglangpb.AbortRequest) (*sglangpb.AbortResponse, error) {
	e.srv.abort(r.GetRequestId())
	return &sglangpb.AbortResponse{Success: true}, nil
}
