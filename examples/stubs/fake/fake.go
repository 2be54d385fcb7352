// Package fake serves the protocols of this folder's stubs on loopback, for
// examples and tests. A server generates nothing; it remembers prompts, as a KV
// cache does, and reports how much of one it had seen. Nothing is ever evicted.
package fake

import (
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"

	"google.golang.org/grpc"

	chatpb "github.com/warmpath/warmpath/examples/stubs/acme/chat/v1"
	sglangpb "github.com/warmpath/warmpath/examples/stubs/sglang/grpc/scheduler"
	vllmpb "github.com/warmpath/warmpath/examples/stubs/vllm/grpc/engine"
)

// The memory is cut in blocks of 16 tokens; four bytes of text are a token.
const (
	block = 16
	size  = 4
)

// A Server is one model server.
type Server struct {
	vllmpb.UnimplementedVllmEngineServer
	sglang sglang
	chat   chat

	addr string
	grpc *grpc.Server
	work sync.WaitGroup

	mu    sync.Mutex // guards what follows
	seen  map[string]bool
	calls int
}

type (
	sglang struct {
		sglangpb.UnimplementedSglangSchedulerServer
		*Server
	}
	chat struct {
		chatpb.UnimplementedChatServiceServer
		*Server
	}
)

// Start serves vllm.grpc.engine.VllmEngine, sglang.grpc.scheduler.SglangScheduler
// and acme.chat.v1.ChatService on a free port of loopback.
func Start() (*Server, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Server{addr: lis.Addr().String(), grpc: grpc.NewServer(), seen: make(map[string]bool)}
	s.sglang.Server, s.chat.Server = s, s
	vllmpb.RegisterVllmEngineServer(s.grpc, s)
	sglangpb.RegisterSglangSchedulerServer(s.grpc, s.sglang)
	chatpb.RegisterChatServiceServer(s.grpc, s.chat)
	s.work.Go(func() { _ = s.grpc.Serve(lis) }) // ends with Stop
	return s, nil
}

// Fleet starts n servers. It returns the dial target that names them all, and
// stop, which stops them.
func Fleet(n int) (target string, servers []*Server, stop func(), err error) {
	stop = func() {
		for _, s := range servers {
			s.Stop()
		}
	}
	addrs := make([]string, n)
	for i := range addrs {
		s, err := Start()
		if err != nil {
			stop()
			return "", nil, nil, err
		}
		servers = append(servers, s)
		addrs[i] = s.Addr()
	}
	return "warmpath:///" + strings.Join(addrs, ","), servers, stop, nil
}

// Addr is where the server listens.
func (s *Server) Addr() string { return s.addr }

// Calls returns how many calls the server has had.
func (s *Server) Calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// Stop closes every connection and waits for the server's end.
func (s *Server) Stop() {
	s.grpc.Stop()
	s.work.Wait()
}

// remember takes a prompt into the memory, and returns how many tokens it has and
// how many of them had been seen.
func (s *Server) remember(prompt string) (tokens, cached uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	known := true
	for end := block * size; end <= len(prompt); end += block * size {
		if known = known && s.seen[prompt[:end]]; known {
			cached += block
		}
		s.seen[prompt[:end]] = true
	}
	return uint32((len(prompt) + size - 1) / size), cached
}

func encode(ids []uint32) string {
	var b []byte
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	return string(b)
}

// Generate answers with as many tokens as are asked for, 1, 2, 3 and so on.
func (s *Server) Generate(q *vllmpb.GenerateRequest, stream grpc.ServerStreamingServer[vllmpb.GenerateResponse]) error {
	prompt := q.GetText()
	if ids := q.GetTokenized().GetInputIds(); len(ids) > 0 {
		prompt = encode(ids)
	}
	tokens, cached := s.remember(prompt)
	var ids []uint32
	for i := range max(1, q.GetSamplingParams().GetMaxTokens()) {
		ids = append(ids, i+1)
		chunk := &vllmpb.GenerateStreamChunk{
			TokenIds: ids[i:], PromptTokens: tokens, CompletionTokens: 1, CachedTokens: cached,
		}
		answer := &vllmpb.GenerateResponse{Response: &vllmpb.GenerateResponse_Chunk{Chunk: chunk}}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
	complete := &vllmpb.GenerateComplete{
		OutputIds: ids[len(ids)-1:], FinishReason: "length", PromptTokens: tokens, CompletionTokens: 1, CachedTokens: cached,
	}
	return stream.Send(&vllmpb.GenerateResponse{Response: &vllmpb.GenerateResponse_Complete{Complete: complete}})
}

// Generate is the same in SGLang's protocol, with one token.
func (s sglang) Generate(
	q *sglangpb.GenerateRequest, stream grpc.ServerStreamingServer[sglangpb.GenerateResponse],
) error {
	tokens, cached := s.remember(encode(q.GetTokenized().GetInputIds()))
	complete := &sglangpb.GenerateComplete{
		OutputIds: []uint32{1}, FinishReason: "length", PromptTokens: tokens, CompletionTokens: 1, CachedTokens: cached,
	}
	return stream.Send(&sglangpb.GenerateResponse{
		RequestId: q.GetRequestId(), Response: &sglangpb.GenerateResponse_Complete{Complete: complete},
	})
}

// Answer reports what it remembers.
func (s chat) Answer(q *chatpb.AnswerRequest, stream grpc.ServerStreamingServer[chatpb.AnswerResponse]) error {
	var prompt strings.Builder
	fmt.Fprintf(&prompt, "%s\n", q.GetTenant())
	for _, t := range q.GetTurns() {
		fmt.Fprintf(&prompt, "%s: %s\n", t.GetSpeaker(), t.GetWords())
	}
	tokens, cached := s.remember(prompt.String())
	return stream.Send(&chatpb.AnswerResponse{
		Words: fmt.Sprintf("I remember %d tokens.", cached),
		Usage: &chatpb.Usage{PromptTokens: tokens, CachedTokens: cached},
	})
}
