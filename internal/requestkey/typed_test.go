package requestkey

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
)

func generatedRequest(prompt isGenPrompt) *genRequest {
	return &genRequest{
		RequestId: "r", Model: "m", Prompt: prompt, Stopping: &genCount{N: 7}, Kv: &genKv{CacheSalt: "salt"},
		SessionId: proto.String("s"), LoraName: proto.String("lora"),
	}
}

func TestGeneratedMessages(t *testing.T) {
	m := mustTable(t).Lookup("/vllm.Inference/Generate")
	want := policy.Request{ID: "r", Model: "m", Session: "s", Adapter: "lora", CacheSalt: "salt"}
	for _, tt := range []struct {
		name   string
		prompt isGenPrompt
		want   policy.Prompt
	}{
		{"text", &genText{Text: "hello"}, text("hello")},
		{"tokens", &genTokenIds{TokenIds: &genIds{Ids: ids}}, tokens(ids...)},
		{"no tokens", &genTokenIds{}, policy.Prompt{}},
		{"none", nil, policy.Prompt{}},
		{"nil", (*genText)(nil), policy.Prompt{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			msg := generatedRequest(tt.prompt)
			want := want
			want.SetPrompt(tt.want)
			require.Equal(t, want, read(m, everything, msg))
			if tt.name != "nil" {
				require.Equal(t, want, read(m, everything, marshal(t, msg)))
			}
		})
	}
	require.Equal(t, policy.Request{}, read(m, everything, &genRequest{}))
	require.Equal(t, policy.Request{}, read(m, everything, (*genRequest)(nil)))
}

func TestNothingIsCopied(t *testing.T) {
	m := mustTable(t).Lookup("/vllm.Inference/Generate")
	s := strings.Repeat("hello ", 100)
	q := read(m, everything, generatedRequest(&genText{Text: s}))
	require.Same(t, unsafe.StringData(s), unsafe.StringData(q.Prompt.Text))
	q = read(m, everything, generatedRequest(&genTokenIds{TokenIds: &genIds{Ids: ids}}))
	require.Same(t, &ids[0], &q.Prompt.Tokens[0])
	require.Equal(t, len(q.Prompt.Tokens), cap(q.Prompt.Tokens), "appending cannot write into the message")

	// int32 ids, in a message of protobuf's own.
	m = mustTable(t, dialect.Dialect{Methods: []string{"/a/b"}, Tokens: "1", Prompt: "6[]"}).Lookup("/a/b")
	path := []int32{1, -1, 3}
	q = read(m, everything, &descriptorpb.SourceCodeInfo_Location{Path: path})
	require.Equal(t, tokens(1, 1<<32-1, 3), q.Prompt)
	require.Equal(t, unsafe.Pointer(&path[0]), unsafe.Pointer(&q.Prompt.Tokens[0]))
	q = read(m, everything, &descriptorpb.SourceCodeInfo_Location{LeadingDetachedComments: []string{"ab", "c"}})
	require.Equal(t, text("ab\xfdc"), q.Prompt)
}

func TestEncodedStringsAreCopies(t *testing.T) {
	m := mustTable(t).Lookup("/vllm.Inference/Generate")
	raw := marshal(t, generatedRequest(&genText{Text: "hello"}))
	q := read(m, everything, mem.SliceBuffer(raw))
	want := q
	want.Prompt, q.Prompt = policy.Prompt{}, policy.Prompt{}
	want = policy.Request{ID: strings.Clone(q.ID), Model: strings.Clone(q.Model), Session: strings.Clone(q.Session),
		Adapter: strings.Clone(q.Adapter), CacheSalt: strings.Clone(q.CacheSalt), PromptTokens: q.PromptTokens}
	clear(raw) // the buffer goes back to its pool
	require.Equal(t, want, q)

	m = mustTable(t).Lookup("/sglang.runtime.v1.SglangService/ChatComplete")
	body := []byte(`{"model":"base:lora","session_id":"s","cache_salt":"c","rid":"r"}`)
	q = read(m, everything, &rawFrame{marshal(t, build(t, nil, pv{"1", body}))})
	require.Equal(t, policy.Request{ID: "r", Model: "base:lora", Session: "s", CacheSalt: "c"}, q)
}

// rawFrame is a message of a raw codec.
type rawFrame struct{ b []byte }

func (f *rawFrame) Bytes() []byte { return f.b }

func TestShapes(t *testing.T) {
	m := mustTable(t).Lookup("/vllm.Inference/Generate")
	raw := marshal(t, generatedRequest(&genText{Text: "hello"}))
	want := read(m, everything, raw)
	require.Equal(t, text("hello"), want.Prompt)
	whole := mem.BufferSlice{mem.SliceBuffer(raw)}
	parts := mem.BufferSlice{mem.SliceBuffer(raw[:5]), mem.SliceBuffer(raw[5:])}
	for _, msg := range []any{raw, &raw, whole, &whole, parts, &parts, whole[0], &rawFrame{raw}, bytes.NewBuffer(raw)} {
		require.Equal(t, want, read(m, everything, msg), "%T", msg)
	}
	require.Equal(t, policy.Request{ID: "r"}, read(m, 0, parts), "the first buffer only")
}

func TestNothingToRead(t *testing.T) {
	table := mustTable(t)
	var nilRaw *[]byte
	var nilSlice *mem.BufferSlice
	var nilFrame *rawFrame
	freed := mem.NewBuffer(new([]byte), mem.NopBufferPool{})
	for _, method := range []string{"/vllm.Inference/Generate", "/x/y", "/inference.GRPCInferenceService/ModelInfer", "/backend.Backend/Predict"} {
		m := table.Lookup(method)
		for _, msg := range []any{nil, 3, "text", struct{}{}, &struct{ A int }{}, nilRaw, nilSlice, nilFrame, freed,
			mem.BufferSlice{}, mem.BufferSlice{nil, nil}, &grpc.PreparedMsg{}, (*genRequest)(nil), (*structpb.Struct)(nil), (*oldRequest)(nil),
			(*build(t, nil)).Type().Zero().Interface(), panics{}, []string{"a"}, map[string]string{}, func() {}, proto.Message(nil)} {
			q := policy.Request{Session: "set"}
			u := policy.NoUsage
			require.NotPanics(t, func() { m.Request(&q, everything|WantModel, msg); m.Usage(&u, msg) }, "%T", msg)
			require.True(t, q.Prompt.Empty())
			require.Equal(t, "set", q.Session)
		}
	}
	require.NotPanics(t, func() {
		var m *Method
		m.Request(&policy.Request{}, everything, nil)
		table.Lookup("").Request(nil, everything, nil)
		require.False(t, m.Usage(nil, nil))
	})
}

type panics struct{}

func (panics) Bytes() []byte { panic("not yet") }

func TestOldMessages(t *testing.T) {
	want := policy.Request{Session: "s", CacheSalt: "salt"}
	want.SetPrompt(tokens(4, 5))
	byNumber := mustTable(t, dialect.Dialect{Methods: []string{"/a/b"}, Tokens: "5", Prompt: "3", CacheSalt: "10.2", Session: "13"}).Lookup("/a/b")
	msg := &oldRequest{Prompt: proto.String("hello"), Kv: &oldKv{CacheSalt: proto.String("salt")}, Tokens: []int32{4, 5}, Choice: &oldSession{"s"}}
	require.Equal(t, want, read(byNumber, everything, msg))
	encoded := marshal(t, build(t, nil, pv{"5", []int32{4, 5}}, pv{"10.2", "salt"}, pv{"13", "s"}))
	require.Equal(t, want, read(byNumber, everything, &gogoRequest{Kv: gogoKv{"salt"}, encoded: encoded}), "by its own encoding")
	want.CacheSalt = ""
	require.Equal(t, want, read(mustTable(t).Lookup("/unknown/Method"), everything, msg))
}

// A proxy's frame that has the methods of a message only to satisfy the interface is read in its encoded form.
func TestFrameOfAProxy(t *testing.T) {
	payload := marshal(t, build(t, nil, pv{"1", "r"}, pv{"3", "hello"}))
	want := policy.Request{ID: "r"}
	want.SetPrompt(text("hello"))
	require.Equal(t, want, read(mustTable(t).Lookup("/vllm.Inference/Generate"), everything, &proxyFrame{payload: payload}))
}

type proxyFrame struct {
	proto.Message // nil
	payload       []byte
}

func (f *proxyFrame) Marshal() ([]byte, error) { return f.payload, nil }

func TestOneofOfGeneratedMessage(t *testing.T) {
	m := mustTable(t, dialect.Dialect{Methods: []string{"/a/b"}, Prompt: "string_value", Session: "3"}).Lookup("/a/b")
	want := policy.Request{Session: "hello"}
	want.SetPrompt(text("hello"))
	require.Equal(t, want, read(m, everything, structpb.NewStringValue("hello")))
	require.Equal(t, policy.Request{}, read(m, everything, structpb.NewNumberValue(3)))
}

func TestUnknownMethods(t *testing.T) {
	m := mustTable(t).Lookup("/my.Service/Do")
	for _, tt := range []struct {
		name   string
		fields []pv
		want   policy.Request
	}{
		{"prompt", []pv{{"7:prompt", "hello"}, {"3:session_id", "s"}, {"1:model", "m"}, {"2:request_id", "r"}, {"9:lora_name", "l"}, {"4:cache_salt", "c"}, {"5:max_tokens", uint32(9)}},
			policy.Request{ID: "r", Model: "m", Session: "s", Adapter: "l", CacheSalt: "c", Prompt: text("hello")}},
		{"prompt_token_ids", []pv{{"7:prompt", "hello"}, {"3:prompt_token_ids", ids}}, policy.Request{Prompt: tokens(ids...)}},
		{"input_ids", []pv{{"3:input_ids", []int32{1, 2}}}, policy.Request{Prompt: tokens(1, 2)}},
		{"messages", []pv{{"3:messages#0.7:content", "hi"}, {"3:messages#0.8:role", "user"}, {"3:messages#1.7:content", "yes"}},
			policy.Request{Prompt: text("\xffuser\xfethi\xff\xfetyes")}},
		{"other types", []pv{{"3:prompt.1", "x"}, {"4:messages", "x"}, {"5:model.1", "m"}, {"6:session_id", []byte("s")}}, policy.Request{Session: "s"}},
		{"deeper", []pv{{"3:inner.1:prompt", "x"}}, policy.Request{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.want.SetPrompt(tt.want.Prompt)
			msg := build(t, nil, tt.fields...)
			require.Equal(t, tt.want, read(m, everything, msg))
			require.Equal(t, policy.Request{}, read(m, everything, marshal(t, msg)), "names are not encoded")
		})
	}
}

func TestOnlyWhatIsUsed(t *testing.T) {
	table := mustTable(t)
	msg := generatedRequest(&genText{Text: "hello"})
	cheap := policy.Request{ID: "r", Model: "m", Adapter: "lora", CacheSalt: "salt"}
	for _, m := range []any{msg, marshal(t, msg)} {
		require.Equal(t, cheap, read(table.Lookup("/vllm.Inference/Generate"), 0, m))
		withSession := cheap
		withSession.Session = "s"
		require.Equal(t, withSession, read(table.Lookup("/vllm.Inference/Generate"), policy.UsesSession, m))
	}
	chat := table.Lookup("/sglang.runtime.v1.SglangService/ChatComplete")
	body := build(t, nil, pv{"1", []byte(`{"model":"m","user":"u","messages":[{"role":"user","content":"x"}]}`)})
	require.Equal(t, policy.Request{}, read(chat, 0, body))
	require.Equal(t, policy.Request{Model: "m"}, read(chat, WantModel, body))
	require.Equal(t, policy.Request{Model: "m", Session: "u"}, read(chat, policy.UsesSession, body))
	tensors := build(t, nil, pv{"5#0.1", "sampling_parameters"}, pv{"5#0.2", "BYTES"}, pv{"7", [][]byte{[]byte("\x11\x00\x00\x00{\"lora_name\":\"l\"}")}})
	require.Equal(t, policy.Request{}, read(table.Lookup("/inference.GRPCInferenceService/ModelInfer"), 0, tensors))
	require.Equal(t, policy.Request{Adapter: "l"}, read(table.Lookup("/inference.GRPCInferenceService/ModelInfer"), WantModel, tensors))
}

func TestConcurrentReads(t *testing.T) {
	m := mustTable(t).Lookup("/vllm.Inference/Generate")
	dynamic := build(t, nil, pv{"3", "hello"})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for _, msg := range []any{generatedRequest(&genText{Text: "hello"}), dynamic, marshal(t, dynamic)} {
				for range 50 {
					if q := read(m, everything, msg); q.Prompt.Text != "hello" {
						t.Errorf("%T: %+v", msg, q)
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestGeneratedUsage(t *testing.T) {
	m := mustTable(t).Lookup("/vllm.Inference/Generate")
	u := policy.NoUsage
	require.True(t, m.Usage(&u, &genResponse{PromptInfo: &genCount{N: 10}}))
	require.True(t, m.Usage(&u, &genResponse{Outputs: []*genOutput{{NumTokens: 2}, nil, {NumTokens: 1, FinishInfo: &genCount{N: 1}}}}))
	require.False(t, m.Usage(&u, &genResponse{Outputs: []*genOutput{{}}}))
	require.Equal(t, policy.Usage{PromptTokens: 10, OutputTokens: 3, CachedTokens: -1}, u)
}
