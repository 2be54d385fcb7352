package requestkey

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/balancer/dialect"
)

const (
	vllmMethod   = "/vllm.Inference/GenerateStream"
	smgMethod    = "/vllm.grpc.engine.VllmEngine/Generate"
	sglangMethod = "/sglang.grpc.scheduler.SglangScheduler/Generate"
	trtMethod    = "/trtllm.TrtllmService/Generate"
)

// resuming is a method whose streams resume at another replica, with the request fields that permit it.
func resuming(t testing.TB, method string) (*Method, []pv) {
	table := mustTable(t, dialect.Dialect{Like: method})
	require.True(t, table.Lookup(method).Resumes())
	tokens := map[string]string{vllmMethod: "4.1", smgMethod: "2.2", sglangMethod: "2.2", trtMethod: "2.2"}[method]
	bound := map[string]string{vllmMethod: "8.1", smgMethod: "4.8", sglangMethod: "4.8", trtMethod: "5"}[method]
	return table.Lookup(method), []pv{{"1", "id"}, {tokens, []uint32{1, 2, 3}}, {bound, uint32(6)}}
}

// A field that another replica would treat differently prevents a resume there.
func TestOutputOfRequests(t *testing.T) {
	for _, tt := range []struct {
		method, what string
		field        pv
		ok           bool
	}{
		{vllmMethod, "temperature", pv{"5", float32(0.7)}, true},
		{vllmMethod, "one sequence", pv{"6.1", uint32(1)}, true},
		{vllmMethod, "two sequences", pv{"6.1", uint32(2)}, false},
		{vllmMethod, "seed", pv{"6.5", int64(7)}, false},
		{vllmMethod, "presence penalty", pv{"7.1", float32(0.5)}, false},
		{vllmMethod, "repetition penalty", pv{"7.3", float32(1.2)}, true},
		{vllmMethod, "JSON schema", pv{"7.6", "{}"}, false},
		{vllmMethod, "least tokens", pv{"8.2", uint32(2)}, false},
		{vllmMethod, "stop token", pv{"8.3", []uint32{9}}, true},
		{vllmMethod, "stop string", pv{"8.4", []string{"x"}}, false},
		{vllmMethod, "log probabilities", pv{"9.6", true}, true},
		{vllmMethod, "log probabilities of the prompt", pv{"9.2", true}, false},
		{vllmMethod, "truncation", pv{"11", uint32(2)}, false},
		{vllmMethod, "salt", pv{"10.2", "salt"}, true},
		{vllmMethod, "transfer parameters", pv{"10.3.1", "x"}, false},
		{vllmMethod, "media", pv{"14.6", "hash"}, true},
		{vllmMethod, "a later field", pv{"99", uint32(1)}, false},
		{smgMethod, "two sequences", pv{"4.15", uint32(2)}, false},
		{smgMethod, "one sequence", pv{"4.15", uint32(1)}, true},
		{smgMethod, "choice", pv{"4.21.1", []string{"a"}}, false},
		{smgMethod, "regex", pv{"4.17", "a*"}, false},
		{smgMethod, "penalty that is off", pv{"4.6", float32(0)}, true},
		{smgMethod, "transfer parameters", pv{"8", "{}"}, false},
		{smgMethod, "media", pv{"7.6", []string{"hash"}}, true},
		{sglangMethod, "repetition penalty that is off", pv{"4.7", float32(1)}, true},
		{sglangMethod, "repetition penalty", pv{"4.7", float32(1.1)}, false},
		{sglangMethod, "log probabilities", pv{"5", true}, false},
		{sglangMethod, "grammar", pv{"4.15", "x"}, false},
		{trtMethod, "beams", pv{"3.1", uint32(2)}, false},
		{trtMethod, "guided decoding", pv{"11.2", "x"}, false},
		{trtMethod, "temperature", pv{"3.9", float32(0.5)}, true},
	} {
		t.Run(tt.method+" "+tt.what, func(t *testing.T) {
			m, fields := resuming(t, tt.method)
			output, size := m.Output(build(t, nil, append(fields, tt.field)...), 1<<20, new(Ends))
			require.Equal(t, tt.ok, output != nil)
			require.Equal(t, tt.ok, size > 0)
		})
	}
	m, fields := resuming(t, smgMethod)
	later := build(t, nil, fields...)
	later.SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 77, protowire.VarintType), 1))
	for what, request := range map[string]any{
		"encoded":       marshal(t, build(t, nil, fields...)),
		"unknown field": later,
		"no tokens":     build(t, nil, fields[0], fields[2]),
		"no bound":      build(t, nil, fields[:2]...),
		"no request":    (*genRequest)(nil),
	} {
		output, _ := m.Output(request, 1<<20, new(Ends))
		require.Nil(t, output, what)
	}
	output, _ := m.Output(build(t, nil, fields...), 10, new(Ends))
	require.Nil(t, output, "too large")
}

// Outputs of other methods cannot be put behind their prompt.
func TestMethodsThatDoNotResume(t *testing.T) {
	for method, d := range map[string]dialect.Dialect{
		"/my.Service/Generate":                      {Methods: []string{"/my.Service/Generate"}, Tokens: "1", MaxTokens: "2"},
		"/sglang.runtime.v1.SglangService/Generate": {Like: "/sglang.runtime.v1.SglangService/Generate"},
	} {
		require.False(t, mustTable(t, d).Lookup(method).Resumes(), method)
	}
}

// outputStep is a message of an attempt, and what the application gets of it; nil = the same.
type outputStep struct{ sent, got []pv }

// receive gives an output the messages of an attempt.
func receive(t *testing.T, output *Output, steps []outputStep) {
	for _, s := range steps {
		msg := build(t, nil, s.sent...)
		deliver, useless := output.Read(msg)
		require.False(t, useless)
		require.Equal(t, s.got == nil || len(s.got) > 0, deliver)
		if len(s.got) > 0 {
			require.Equal(t, message{typed: build(t, nil, s.got...)}.encoded(), message{typed: msg}.encoded())
		}
	}
}

// Counts and lists of a later attempt become those of the whole stream.
func TestOutputOfEngines(t *testing.T) {
	chunk := func(ids []uint32, prompt, total uint32) []pv {
		return []pv{{"2.1", ids}, {"2.2", prompt}, {"2.3", total}}
	}
	trtChunk := func(ids []uint32, prompt, total uint32) []pv {
		return []pv{{"2.1", ids}, {"2.3", prompt}, {"2.4", total}}
	}
	for name, tt := range map[string]struct {
		method        string
		first, second []outputStep
		prompt        []uint32 // of the second attempt
		bound         uint32
		ended         bool
	}{
		"vLLM, whose first message has the prompt alone": {
			vllmMethod,
			[]outputStep{{[]pv{{"1.1", uint32(3)}}, nil}, {[]pv{{"2.2", "a"}, {"2.3", uint32(1)}, {"2.4", []uint32{11}}}, nil}},
			[]outputStep{
				{[]pv{{"1.1", uint32(4)}}, []pv{}},
				{[]pv{{"2.2", "b"}, {"2.3", uint32(1)}, {"2.4", []uint32{12}}, {"2.8.1", uint32(1)}},
					[]pv{{"2.2", "b"}, {"2.3", uint32(1)}, {"2.4", []uint32{12}}, {"2.8.1", uint32(2)}}},
			},
			[]uint32{1, 2, 3, 11}, 5, true,
		},
		"SGLang": {
			sglangMethod,
			[]outputStep{{chunk([]uint32{11, 12}, 3, 2), nil}, {chunk([]uint32{13}, 3, 3), nil}},
			[]outputStep{
				{chunk([]uint32{14}, 6, 1), chunk([]uint32{14}, 3, 4)},
				{[]pv{{"3.1", []uint32{14}}, {"3.3", uint32(6)}, {"3.4", uint32(1)}, {"3.5", uint32(6)}},
					[]pv{{"3.1", []uint32{14}}, {"3.3", uint32(3)}, {"3.4", uint32(4)}, {"3.5", uint32(3)}}},
			},
			[]uint32{1, 2, 3, 11, 12, 13}, 3, true,
		},
		"TRT-LLM": {
			trtMethod,
			[]outputStep{{trtChunk([]uint32{11}, 3, 1), nil}},
			[]outputStep{
				{trtChunk([]uint32{12}, 4, 1), trtChunk([]uint32{12}, 3, 2)},
				{[]pv{{"3.1", []uint32{12}}, {"3.5", uint32(4)}, {"3.6", uint32(1)}},
					[]pv{{"3.1", []uint32{11, 12}}, {"3.5", uint32(3)}, {"3.6", uint32(2)}}},
			},
			[]uint32{1, 2, 3, 11}, 5, true,
		},
		"TRT-LLM, the last message is missing": {
			trtMethod,
			[]outputStep{{trtChunk([]uint32{11, 12, 13, 14, 15, 16}, 3, 6), nil}},
			[]outputStep{
				{trtChunk([]uint32{77}, 8, 1), []pv{}},
				{[]pv{{"3.1", []uint32{77}}, {"3.5", uint32(8)}, {"3.6", uint32(1)}},
					[]pv{{"3.1", []uint32{11, 12, 13, 14, 15, 16}}, {"3.5", uint32(3)}, {"3.6", uint32(6)}}},
			},
			[]uint32{1, 2, 3, 11, 12, 13, 14, 15}, 1, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, fields := resuming(t, tt.method)
			output, _ := m.Output(build(t, nil, fields...), 1<<20, new(Ends))
			receive(t, output, tt.first)
			next := output.Next()
			require.NotNil(t, next)
			require.Equal(t, tt.prompt, read(m, everything, next).Prompt.Tokens)
			require.EqualValues(t, tt.bound, m.MaxTokens(next))
			receive(t, output, tt.second)
			require.Equal(t, tt.ended, output.Ended())
		})
	}
}

// A stream does not resume after its end, nor where its output so far is unknown.
func TestOutputThatIsOver(t *testing.T) {
	smgChunk := func(n uint32, ids ...uint32) []pv { return []pv{{"1.1", ids}, {"1.3", n}} }
	reply := func(text string) []pv { return []pv{{"2.4", []uint32{11}}, {"2.3", uint32(1)}, {"2.2", text}} }
	for name, tt := range map[string]struct {
		method string
		more   []pv
		got    []pv
		ok     bool
	}{
		"goes on":                   {smgMethod, nil, smgChunk(1, 11), true},
		"stop token":                {smgMethod, []pv{{"4.11", []uint32{7, 11}}}, smgChunk(1, 11), false},
		"other stop token":          {smgMethod, []pv{{"4.11", []uint32{7}}}, smgChunk(1, 11), true},
		"end of another stream":     {smgMethod, nil, smgChunk(1, 5), false},
		"count without its ids":     {smgMethod, nil, smgChunk(2, 11), false},
		"more than the bound":       {smgMethod, nil, smgChunk(7, 1, 2, 3, 4, 6, 7, 8), false},
		"text":                      {vllmMethod, nil, reply("word"), true},
		"text that is held back":    {vllmMethod, nil, reply(""), false},
		"half of a letter":          {vllmMethod, nil, reply("a\uFFFD"), false},
		"no text":                   {vllmMethod, []pv{{"9.4", false}}, reply(""), true},
		"all ids again, not so far": {sglangMethod, nil, []pv{{"2.1", []uint32{11, 12}}, {"2.3", uint32(1)}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			m, fields := resuming(t, tt.method)
			ends := new(Ends)
			if tt.method == smgMethod { // another stream of the channel ends with 5
				other, _ := m.Output(build(t, nil, fields...), 1<<20, ends)
				other.Read(build(t, nil, smgChunk(1, 5)...))
				other.Read(build(t, nil, pv{"2.2", "stop"}))
				require.True(t, other.Ended())
			}
			output, _ := m.Output(build(t, nil, append(fields, tt.more...)...), 1<<20, ends)
			require.NotNil(t, output)
			deliver, _ := output.Read(build(t, nil, tt.got...))
			require.True(t, deliver)
			require.Equal(t, tt.ok, output.Next() != nil)
		})
	}
	m, fields := resuming(t, smgMethod)
	output, _ := m.Output(build(t, nil, fields...), 1<<20, new(Ends))
	deliver, useless := output.Read(marshal(t, build(t, nil, smgChunk(1, 11)...)))
	require.True(t, deliver && useless, "a message that is not decoded")
}

// Methods beside those that generate, in the services of engines, carry no prompt. Of other services that is not known.
func TestMethodsBesideTheOnesWithPrompts(t *testing.T) {
	table := mustTable(t, dialect.Dialect{Methods: []string{"/my.Service/Generate"}, Tokens: "1"})
	for method, want := range map[string]bool{
		smgMethod: false, "/vllm.grpc.engine.VllmEngine/GetModelInfo": true, "/vllm.grpc.engine.VllmEngine/HealthCheck": true,
		"/sglang.grpc.scheduler.SglangScheduler/GetServerInfo": true, "/my.Service/Generate": false, "/my.Service/Other": false,
		"/other.Service/Method": false, "": false, "/": false, "nonsense": false,
	} {
		require.Equal(t, want, table.Beside(method), method)
	}
}
