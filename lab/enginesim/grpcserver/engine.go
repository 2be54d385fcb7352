package grpcserver

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/lab/enginesim"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
)

// defaultMaxTokens is vLLM's.
const defaultMaxTokens = 16

// engineService is vllm.grpc.engine.VllmEngine.
type engineService struct {
	enginepb.UnimplementedVllmEngineServer
	srv *Server
}

// Generate implements the service.
func (e *engineService) Generate(r *enginepb.GenerateRequest,
	stream grpc.ServerStreamingServer[enginepb.GenerateResponse]) error {
	if rank := r.GetDataParallelRank(); rank != 0 {
		return noRank(int64(rank))
	}
	output := defaultMaxTokens
	if p := r.GetSamplingParams(); p != nil && p.MaxTokens != nil {
		output = int(p.GetMaxTokens())
	}
	if r.GetText() == "" && len(r.GetTokenized().GetInputIds()) == 0 {
		return status.Error(codes.InvalidArgument, "the request has neither input_ids nor text")
	}
	l, err := e.srv.kv.jsonLeg(r.GetKvTransferParamsJson(), r.GetRequestId(), output)
	if err != nil {
		return err
	}
	p := prompt{id: r.GetRequestId(), ids: r.GetTokenized().GetInputIds(), text: r.GetText(), output: output, leg: l}
	chunk := func(c *enginesim.Call, i int) *enginepb.GenerateResponse {
		return &enginepb.GenerateResponse{Response: &enginepb.GenerateResponse_Chunk{Chunk: &enginepb.GenerateStreamChunk{
			TokenIds: outputIDs(c, i, i+1), PromptTokens: uint32(c.Result().PromptTokens), CompletionTokens: 1,
			CachedTokens: uint32(c.Result().CachedTokens),
		}}}
	}
	end := func(c *enginesim.Call, begin, to int, reason string) *enginepb.GenerateResponse {
		complete := &enginepb.GenerateComplete{
			OutputIds: outputIDs(c, begin, to), FinishReason: reason, PromptTokens: uint32(c.Result().PromptTokens),
			CompletionTokens: uint32(to - begin), CachedTokens: uint32(c.Result().CachedTokens),
		}
		if l != nil && l.answer != "" {
			complete.KvTransferParamsJson = &l.answer
		}
		return &enginepb.GenerateResponse{Response: &enginepb.GenerateResponse_Complete{Complete: complete}}
	}
	return e.srv.run(stream.Context(), p, asSMG(stream, r.GetStream(), chunk, end))
}

// asSMG passes on the tokens of a call as SMG's servicers do: a stream has a chunk for each token, and its end repeats
// the last one; without a stream the end has all.
func asSMG[M any](stream grpc.ServerStreamingServer[M], chunks bool, chunk func(c *enginesim.Call, i int) *M,
	end func(c *enginesim.Call, begin, to int, reason string) *M,
) func(c *enginesim.Call, from, to int, done bool) error {
	return func(c *enginesim.Call, from, to int, done bool) error {
		begin := 0
		if chunks {
			for i := from; i < to; i++ {
				if err := stream.Send(chunk(c, i)); err != nil {
					return err
				}
			}
			begin = max(0, to-1)
		}
		if !done {
			return nil
		}
		reason := "length"
		if c.Result().Aborted {
			reason = "abort"
		}
		return stream.Send(end(c, begin, to, reason))
	}
}

func outputIDs(c *enginesim.Call, from, to int) []uint32 {
	ids := make([]uint32, 0, to-from)
	for i := from; i < to; i++ {
		ids = append(ids, c.Token(i))
	}
	return ids
}

// Abort implements the service.
func (e *engineService) Abort(_ context.Context, r *enginepb.AbortRequest) (*enginepb.AbortResponse, error) {
	for _, id := range r.GetRequestIds() {
		e.srv.abort(id)
	}
	return &enginepb.AbortResponse{}, nil
}

// GetServerInfo implements the service.
func (e *engineService) GetServerInfo(context.Context, *enginepb.GetServerInfoRequest) (*enginepb.GetServerInfoResponse,
	error) {
	s := e.srv.Stats()
	info := &enginepb.GetServerInfoResponse{
		ActiveRequests: uint32(s.Ongoing), ServerType: "vllm-grpc", DataParallelSize: 1, UptimeSeconds: s.Now.Seconds(),
	}
	if d := e.srv.kv; d != nil && d.Connector != Rooms {
		info.KvConnector = map[Connector]string{NIXL: "NixlConnector", Mooncake: "MooncakeConnector"}[d.Connector]
		info.KvRole = map[Role]string{Both: "kv_both", Prefill: "kv_producer", Decode: "kv_consumer"}[d.Role]
		info.KvEngineId = d.EngineID
	}
	return info, nil
}

// GetLoads implements the service.
func (e *engineService) GetLoads(_ context.Context, r *enginepb.GetLoadsRequest) (*enginepb.GetLoadsResponse, error) {
	if rank := r.GetDpRank(); rank != 0 {
		return nil, noRank(int64(rank))
	}
	s := e.srv.Stats()
	load := &enginepb.SchedulerLoad{
		NumRunningReqs: int32(s.Load.Running), NumWaitingReqs: int32(s.Load.Waiting),
		NumTotalReqs: int32(s.Load.Running + s.Load.Waiting), NumUsedTokens: int32(s.Load.UsedTokens),
		MaxTotalNumTokens: int32(s.Load.TotalTokens), TokenUsage: ratio(s.Load.UsedTokens, s.Load.TotalTokens),
		CacheHitRate: ratio(s.Engine.CachedTokens, s.Engine.PromptTokens), MaxRunningRequests: int32(s.Load.MaxSequences),
	}
	if s.Now > 0 {
		load.GenThroughput = float64(s.Engine.OutputTokens) / s.Now.Seconds()
		load.Utilization = min(s.Engine.Busy.Seconds()/s.Now.Seconds(), 1)
	}
	return &enginepb.GetLoadsResponse{
		Timestamp: time.Now().UTC().Format(time.RFC3339Nano), Version: version, DpRankCount: 1,
		Loads: []*enginepb.SchedulerLoad{load},
	}, nil
}

func ratio(a, b int) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// ServeMetrics answers with the few lines of vLLM's Prometheus page that have the load and the size of the cache.
func (s *Server) ServeMetrics(w http.ResponseWriter, _ *http.Request) {
	st, c := s.Stats(), s.driver.Config()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	labels := fmt.Sprintf("engine=%q,model_name=%q", "0", s.model())
	for _, m := range []struct {
		name, what string
		value      float64
	}{
		{"vllm:num_requests_running", "Number of requests in model execution batches.", float64(st.Load.Running)},
		{"vllm:num_requests_waiting", "Number of requests waiting to be processed.", float64(st.Load.Waiting)},
		{"vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.",
			ratio(st.Load.UsedTokens, st.Load.TotalTokens)},
	} {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s gauge\n%s{%s} %g\n", m.name, m.what, m.name, m.name, labels, m.value)
	}
	fmt.Fprintf(w,
		"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size=\"%d\",num_gpu_blocks=\"%d\",%s} 1\n",
		c.BlockSize, st.Load.TotalTokens/max(c.BlockSize, 1), labels)
}
