package requestkey

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/warmpath/warmpath/balancer/dialect"
)

const room = 0x1234_5678_9abc_def0 // its lower 31 bits: 448585456

var bootstrapServer = Transfer{Room: room, Address: "10.0.0.1:8998", Engine: `e"1_dp2`}

// legsOf has a row for every flow: the request of the application, and what each leg adds to it.
var legsOf = []struct {
	name, method    string
	request         []pv
	oneof           []int32
	engine          string
	sequential      bool
	answer          []pv // of the prefill leg
	handed          []pv // the value that the answer has for the decode leg
	prefill, decode []pv
}{
	{"vllm", "/vllm.Inference/GenerateStream",
		[]pv{{"1", "r"}, {"4.1", ids}, {"8.1", uint32(77)}, {"8.2", uint32(20)}, {"10.2", "salt"}}, nil, "", true,
		[]pv{{"1.1", uint32(4)}, {"2.3", uint32(1)}, {"2.8.1", uint32(1)}, {"2.8.6.1[remote_host].3", "h"}},
		[]pv{{"1[remote_host].3", "h"}},
		[]pv{{"8.1", uint32(1)}, {"8.2", uint32(1)}, {"10.3.1[do_remote_decode].4", uint32(1)}},
		[]pv{{"10.3.1[remote_host].3", "h"}}},
	{"engine", "/vllm.grpc.engine.VllmEngine/Generate",
		[]pv{{"1", "r"}, {"2.2", ids}, {"4.8", uint32(77)}, {"5", uint32(0)}}, nil, "", true,
		[]pv{{"2.3", uint32(4)}, {"2.12", `{"remote_block_ids": [1,  2]}`}}, nil,
		[]pv{{"4.8", uint32(1)}, {"4.9", uint32(1)}, {"8", `{"do_remote_decode":true}`}},
		[]pv{{"8", `{"remote_block_ids": [1,  2]}`}}},
	{"mooncake", "/vllm.grpc.engine.VllmEngine/Generate",
		[]pv{{"1", "r"}, {"2.2", ids}, {"4.8", uint32(77)}, {"5", uint32(0)}}, nil, "e", false, nil, nil,
		[]pv{{"4.8", uint32(1)}, {"4.9", uint32(1)},
			{"8", `{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"1311768467463790320"}`}},
		[]pv{{"8", `{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":"1311768467463790320",` +
			`"remote_engine_id":"e\"1_dp2","remote_bootstrap_addr":"http://10.0.0.1:8998"}`}}},
	{"sglang", "/sglang.grpc.scheduler.SglangScheduler/Generate",
		[]pv{{"1", "r"}, {"2.2", ids}, {"4.8", uint32(77)}}, nil, "", false, nil, nil,
		[]pv{{"10.1", "10.0.0.1"}, {"10.2", uint32(8998)}, {"10.3", uint32(room & (1<<31 - 1))}}, nil},
	{"sglang native text", "/sglang.runtime.v1.SglangService/TextGenerate",
		[]pv{{"1", "hello"}, {"2.8", uint32(77)}}, nil, "", false, nil, nil,
		[]pv{{"14.1", "10.0.0.1"}, {"14.2", uint32(8998)}, {"14.3", int64(room)}}, nil},
	{"sglang native ids", "/sglang.runtime.v1.SglangService/Generate",
		[]pv{{"1", []int32{1, 2}}, {"2.8", uint32(77)}}, nil, "", false, nil, nil,
		[]pv{{"13.1", "10.0.0.1"}, {"13.2", uint32(8998)}, {"13.3", int64(room)}}, nil},
	{"sglang api", "/sglang.api.v1.SglangService/Generate",
		[]pv{{"1.1", "r"}, {"3.1.1", []int32{1, 2}}}, nil, "", false, nil, nil,
		[]pv{{"12.1.1", "10.0.0.1"}, {"13.1.1", int64(8998)}, {"14.1.1", int64(room)}}, nil},
	{"tokenspeed", "/tokenspeed.grpc.scheduler.TokenSpeedScheduler/Generate",
		[]pv{{"1", "r"}, {"2.1", ids}, {"3.8", uint32(77)}}, nil, "", false, nil, nil,
		[]pv{{"11.1", "10.0.0.1"}, {"11.2", uint32(8998)}, {"11.3", int64(room)}}, nil},
	{"openengine", "/openengine.v1.Inference/Generate",
		[]pv{{"1", "r"}, {"4.1", ids}, {"6.1", uint32(77)}}, nil, "", true,
		[]pv{{"1", "r"}, {"4.1.1", "42"}, {"10.1", uint32(4)}}, []pv{{"1", "42"}},
		[]pv{{"12.1[request_type].3", "context_only"}},
		[]pv{{"8.1.1", "42"}}},
	{"openengine 0.1.0", "/openengine.v1.Inference/Generate",
		[]pv{{"1", "r"}, {"4.1", ids}, {"6.1", uint32(77)}}, nil, "", true,
		[]pv{{"3.1.1", "42"}, {"10.1", uint32(4)}}, []pv{{"1", "42"}},
		[]pv{{"12.1[request_type].3", "context_only"}},
		[]pv{{"8.1.1", "42"}}},
}

// Each leg's request is the application's own merged with the fields of the leg. What the prefill leg passes on
// goes to the decode leg byte for byte.
func TestLegs(t *testing.T) {
	table := mustTable(t)
	for _, tt := range legsOf {
		t.Run(tt.name, func(t *testing.T) {
			m := table.Lookup(tt.method)
			request := build(t, tt.oneof, tt.request...)
			require.True(t, m.Splits(request))
			require.True(t, m.Splits(marshal(t, request)))
			legs, transfer := m.Legs().For(tt.engine), bootstrapServer
			require.Equal(t, tt.sequential, legs.Sequential())
			if tt.decode == nil {
				tt.decode = tt.prefill
			}
			if tt.sequential {
				answer := marshal(t, build(t, nil, tt.answer...))
				transfer.Answer = legs.Answer(answer)
				if tt.handed != nil {
					require.Equal(t, marshal(t, build(t, nil, tt.handed...)), transfer.Answer)
				} else {
					require.Equal(t, tt.answer[len(tt.answer)-1].value, string(transfer.Answer))
				}
				require.Nil(t, legs.Answer(marshal(t, build(t, nil, pv{"1", "r"}, pv{"10.1", uint32(1)}))))
			}
			requireMerged(t, tt.request, legs.PatchPrefill(nil, &transfer), tt.prefill)
			requireMerged(t, tt.request, legs.PatchDecode(nil, &transfer), tt.decode)
			require.False(t, m.Splits(slices.Concat(marshal(t, request), legs.PatchDecode(nil, &transfer))),
				"the application has set the parameters")
		})
	}
}

// A request of several prompts or outputs is not split, nor one of a method without legs.
func TestNotSplit(t *testing.T) {
	table := mustTable(t)
	for method, msg := range map[string][]pv{
		"/vllm.Inference/Generate":                        {{"3", "hello"}, {"6.1", uint32(2)}},
		"/vllm.grpc.engine.VllmEngine/Generate":           {{"3", "hello"}, {"4.15", uint32(2)}},
		"/sglang.grpc.scheduler.SglangScheduler/Generate": {{"2.2", ids}, {"4.17", uint32(2)}},
		"/sglang.api.v1.SglangService/Generate":           {{"2.2.1", []string{"ab", "c"}}},
		"/trtllm.TrtllmService/Generate":                  {{"2.2", ids}},
		"/vllm.Generate/Generate":                         {{"3", "hello"}},
	} {
		require.False(t, table.Lookup(method).Splits(build(t, nil, msg...)), method)
	}
	require.False(t, table.Lookup("/vllm.Inference/Generate").Splits(nil))
}

// Fields that the application sets count also where its stubs do not have them, as those of a proxy.
func TestFieldsThatStubsDoNotHave(t *testing.T) {
	m := mustTable(t).Lookup("/vllm.Inference/Generate")
	has := func(more ...pv) *dynamicpb.Message {
		return build(t, nil, append(more, pv{"3", "hello"}, pv{"10.2", "salt"})...)
	}
	split := func(unknown ...pv) bool {
		q, in := has(), build(t, nil, unknown...)
		q.SetUnknown(marshal(t, in))
		return m.Splits(q)
	}
	require.True(t, m.Splits(has()))
	require.True(t, split(pv{"99", "x"}))
	require.True(t, split(pv{"6.1", uint32(1)}))
	require.False(t, split(pv{"6.1", uint32(2)}))
	q := has()
	kv := q.Get(q.Descriptor().Fields().ByNumber(10)).Message()
	kv.SetUnknown(marshal(t, build(t, nil, pv{"3.1[do_remote_decode].4", uint32(1)})))
	require.False(t, m.Splits(q))
	q = has()
	q.SetUnknown(marshal(t, build(t, nil, pv{"12", uint32(5)})))
	require.Empty(t, m.PatchPriority(nil, 1, q))

	require.False(t, m.Splits(struct{}{}), "a message that cannot be read")
}

func TestLegsConfig(t *testing.T) {
	type fields = map[dialect.Path]string
	one := fields{"3": "1"}
	for want, kv := range map[string]dialect.KV{
		"kv.params":                     {},
		"kv.answer":                     {Params: "3", Answer: "2"},
		"kv.prefill: \"a.b\"":           {Params: "3", Prefill: fields{"a.b": "1"}},
		"kv.decode: \"3[]\"":            {Params: "3", Prefill: one, Decode: fields{"3[]": "1"}},
		"kv.sequences":                  {Params: "3", Sequences: "0"},
		"kv.prefill: it is not set":     {Params: "3"},
		"kv.decode: it is not set":      {Params: "3", Prefill: one},
		"kv.prefill: \"3\": $bootstrap": {Params: "3", Prefill: fields{"3": "http://$bootstrap"}, Decode: one},
		"kv.prefill: \"3\": $answer":    {Params: "3", Prefill: fields{"3": "$answer"}, Decode: one},
		"kv.decode: \"4\": $answer":     {Params: "3", Answer: "2", Prefill: one, Decode: fields{"3": "$answer", "4": "<$answer>"}},
		"kv.decode: \"3\": $rooms":      {Params: "3", Prefill: one, Decode: fields{"3": "$rooms"}},
	} {
		_, err := NewTable(dialect.Dialect{Methods: []string{"/a.B/C"}, KV: &kv})
		require.ErrorContains(t, err, want)
	}
	table, err := NewTable(dialect.Dialect{Methods: []string{"/a.B/C"}, KV: &dialect.KV{
		Params: "3", Prefill: map[dialect.Path]string{"3": "$host-$room32"}, Decode: map[dialect.Path]string{"3": "x"},
	}})
	require.NoError(t, err)
	patch := table.Lookup("/a.B/C").Legs().PatchPrefill(nil, &Transfer{Room: 1 << 62, Address: "[::1]:9"})
	require.Equal(t, protowire.AppendString(protowire.AppendTag(nil, 3, protowire.BytesType), "::1-1"), patch)
}
