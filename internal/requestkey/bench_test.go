package requestkey

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
)

func longIDs(n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(i * 7919 % 150000)
	}
	return ids
}

func chatBody(turns int) []byte {
	turn := `{"role":"user","content":"` + strings.Repeat("a question of some length, ", 20) + `\n"}`
	return []byte(`{"model":"m","messages":[` + strings.Repeat(turn+",", turns-1) + turn + `],"max_tokens":100,"session_id":"s"}`)
}

func TestAllocs(t *testing.T) {
	table := mustTable(t)
	inference := table.Lookup("/vllm.Inference/Generate")
	typedIDs := any(generatedRequest(&genTokenIds{TokenIds: &genIds{Ids: longIDs(8192)}}))
	typedText := any(generatedRequest(&genText{Text: strings.Repeat("x", 128)}))
	response := any(&genResponse{PromptInfo: &genCount{N: 10}, Outputs: []*genOutput{{NumTokens: 2}}})
	raw := any(marshal(t, response.(*genResponse)))
	chat := mustTable(t, dialect.Dialect{Methods: []string{"/a/b"}, Messages: &dialect.Messages{Path: "1", Role: "1", Content: "2"}}).Lookup("/a/b")
	turns := any(build(t, nil, pv{"1#0.1", "user"}, pv{"1#0.2", "hi"}, pv{"1#1.1", "assistant"}, pv{"1#1.2", "hello"}))
	ctx := metadata.AppendToOutgoingContext(context.Background(), "session_id", "s")
	keys := NewSessionKeys()
	var q policy.Request
	u := policy.NoUsage
	for _, tt := range []struct {
		name string
		max  float64
		f    func()
	}{
		{"lookup", 0, func() { table.Lookup("/vllm.Inference/Generate"); table.Lookup("/x/y") }},
		{"8k ids, generated", 0, func() { q = policy.Request{}; inference.Request(&q, everything, typedIDs) }},
		{"text, generated", 1, // of protoreflect, for a member of a oneof
			func() { q = policy.Request{}; inference.Request(&q, everything, typedText) }},
		{"text, generated, unused", 0, func() { q = policy.Request{}; inference.Request(&q, 0, typedText) }},
		{"chat of two turns, typed", 7, func() { q = policy.Request{}; chat.Request(&q, everything, turns) }},
		{"unknown method", 0, func() { q = policy.Request{}; table.Lookup("/x/y").Request(&q, everything, typedText) }},
		{"usage, generated", 0,
			func() { inference.Usage(&u, response) }},
		{"usage, encoded", 0, func() { inference.Usage(&u, raw) }},
		{"session", 1, func() { keys.Outgoing(ctx) }},
		{"no session", 0, func() { keys.Outgoing(context.Background()) }},
	} {
		tt.f()
		require.LessOrEqual(t, testing.AllocsPerRun(100, tt.f), tt.max, tt.name)
	}
}

func BenchmarkRequest(b *testing.B) {
	table := mustTable(b)
	ids := generatedRequest(&genTokenIds{TokenIds: &genIds{Ids: longIDs(8192)}})
	short := generatedRequest(&genText{Text: strings.Repeat("x", 128)})
	long := generatedRequest(&genText{Text: strings.Repeat("x", 32<<10)})
	for _, bb := range []struct {
		name, method string
		uses         policy.Uses
		msg          any
	}{
		{"typed/text=128", "/vllm.Inference/Generate", everything, short},
		{"typed/text=32768", "/vllm.Inference/Generate", everything, long},
		{"typed/ids=8192", "/vllm.Inference/Generate", everything, ids},
		{"typed/unused", "/vllm.Inference/Generate", 0, ids},
		{"typed/unknown", "/x/y", everything, short},
		{"dynamic/text=128", "/vllm.Inference/Generate", everything, build(b, []int32{3, 4}, pv{"1", "r"}, pv{"2", "m"}, pv{"3", strings.Repeat("x", 128)}, pv{"13", "s"})},
		{"dynamic/ids=8192", "/vllm.Inference/Generate", everything, build(b, []int32{3, 4}, pv{"4.1", longIDs(8192)})},
		{"raw/text=128", "/vllm.Inference/Generate", everything, marshal(b, short)},
		{"raw/text=32768", "/vllm.Inference/Generate", everything, marshal(b, long)},
		{"raw/ids=8192", "/vllm.Inference/Generate", everything, marshal(b, ids)},
		{"raw/unused", "/vllm.Inference/Generate", 0, marshal(b, ids)},
		{"json/chat=32", "/sglang.runtime.v1.SglangService/ChatComplete", everything, build(b, nil, pv{"1", chatBody(32)})},
		{"json/chat=32/model", "/sglang.runtime.v1.SglangService/ChatComplete", WantModel, build(b, nil, pv{"1", chatBody(32)})},
		{"json/chat=32/unused", "/sglang.runtime.v1.SglangService/ChatComplete", 0, build(b, nil, pv{"1", chatBody(32)})},
		{"tensor/text=128", "/inference.GRPCInferenceService/ModelInfer", everything, marshal(b, build(b, nil, pv{"5#0.1", "text_input"}, pv{"5#0.2", "BYTES"}, pv{"7", [][]byte{[]byte("\x80\x00\x00\x00" + strings.Repeat("x", 128))}}))},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			m := table.Lookup(bb.method)
			for b.Loop() {
				var q policy.Request
				m.Request(&q, bb.uses, bb.msg)
			}
		})
	}
}

func BenchmarkUsage(b *testing.B) {
	table := mustTable(b)
	chunk := &genResponse{Outputs: []*genOutput{{NumTokens: 1}}}
	for _, bb := range []struct {
		name, method string
		msg          any
	}{
		{"typed", "/vllm.Inference/Generate", chunk},
		{"raw", "/vllm.Inference/Generate", marshal(b, chunk)},
		{"json", "/sglang.runtime.v1.SglangService/ChatComplete", marshal(b, build(b, nil, pv{"1", []byte(`{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" word"}}]}`)}))},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			m, u := table.Lookup(bb.method), policy.NoUsage
			for b.Loop() {
				m.Usage(&u, bb.msg)
			}
		})
	}
}

func BenchmarkLookup(b *testing.B) {
	table := mustTable(b)
	for b.Loop() {
		table.Lookup("/vllm.grpc.engine.VllmEngine/Generate")
	}
}

func BenchmarkSession(b *testing.B) {
	keys := NewSessionKeys()
	for name, ctx := range map[string]context.Context{
		"none":   context.Background(),
		"first":  metadata.AppendToOutgoingContext(context.Background(), "session_id", "s", "other", "x"),
		"second": metadata.AppendToOutgoingContext(context.Background(), "x-session-id", "s", "other", "x"),
		"absent": metadata.AppendToOutgoingContext(context.Background(), "other", "x"),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				keys.Outgoing(ctx)
			}
		})
	}
}

func BenchmarkNewTable(b *testing.B) {
	for b.Loop() {
		mustTable(b)
	}
}
