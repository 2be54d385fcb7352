package grpcserver

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/lab/enginesim"
	sglangpb "github.com/warmpath/warmpath/internal/lab/enginesim/enginepb/sglang/grpc/scheduler"
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
	return e.srv.run(stream.Context(), stream, p, func(c *enginesim.Call, from, to int, done bool) error {
		res := c.Result()
		for i := from; r.GetStream() && i < to; i++ {
			chunk := &sglangpb.GenerateStreamChunk{
				TokenIds: []uint32{c.Token(i)}, PromptTokens: uint32(res.PromptTokens), CompletionTokens: uint32(i + 1),
				CachedTokens: uint32(res.CachedTokens),
			}
			m := &sglangpb.GenerateResponse{
				RequestId: r.GetRequestId(), Response: &sglangpb.GenerateResponse_Chunk{Chunk: chunk},
			}
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		if !done {
			return nil
		}
		begin := 0 // as SMG's servicer does: the end of a stream repeats the last delta, with the counts of all
		if r.GetStream() {
			begin = max(0, to-1)
		}
		complete := &sglangpb.GenerateComplete{
			OutputIds: outputIDs(c, begin, to), FinishReason: "length", PromptTokens: uint32(res.PromptTokens),
			CompletionTokens: uint32(to), CachedTokens: uint32(res.CachedTokens),
		}
		if res.Aborted {
			complete.FinishReason = "abort"
		}
		return stream.Send(&sglangpb.GenerateResponse{
			RequestId: r.GetRequestId(), Response: &sglangpb.GenerateResponse_Complete{Complete: complete},
		})
	})
}

// Abort implements the service.
func (e *sglangService) Abort(_ context.Context, r *sglangpb.AbortRequest) (*sglangpb.AbortResponse, error) {
	e.srv.abort(r.GetRequestId())
	return &sglangpb.AbortResponse{Success: true}, nil
}
