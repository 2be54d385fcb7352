package requestkey

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
)

const everyField = `
- methods: [/my.Service/Generate, /my.Service/Chat]
  request_id: 1
  session: "13"
  model: "2"
  adapter: "15|tensor[a]"
  cache_salt: "10.2"
  prompt: "3|5[].text"
  tokens: "4.1"
  messages: {path: "44", role: "1", content: "2"}
  json_body: "7"
  usage: {prompt: "2[prompt_tokens]", output: "3", cached: "4", output_delta: "5", json: "6"}
  defer_stream: true
`

func TestParseDialects(t *testing.T) {
	raw, err := yaml.YAMLToJSON([]byte(everyField))
	require.NoError(t, err)
	ds, err := ParseDialects(raw)
	require.NoError(t, err)
	require.Equal(t, []dialect.Dialect{{
		Methods:   []string{"/my.Service/Generate", "/my.Service/Chat"},
		RequestID: "1", Session: "13", Model: "2", Adapter: "15|tensor[a]", CacheSalt: "10.2",
		Prompt: "3|5[].text", Tokens: "4.1", Messages: &dialect.Messages{Path: "44", Role: "1", Content: "2"},
		JSONBody:    "7",
		Usage:       dialect.Usage{Prompt: "2[prompt_tokens]", Output: "3", Cached: "4", OutputDelta: "5", JSON: "6"},
		DeferStream: true,
	}}, ds)
	again, err := json.Marshal(ds)
	require.NoError(t, err)
	twice, err := ParseDialects(again)
	require.NoError(t, err)
	require.Equal(t, ds, twice)
	for _, none := range []string{"", " ", "null", "[]"} {
		ds, err := ParseDialects(json.RawMessage(none))
		require.NoError(t, err)
		require.Empty(t, ds)
	}
}

func TestBadDialectsNameTheField(t *testing.T) {
	for _, tt := range []struct{ config, want string }{
		{`{}`, "dialects: it is an object, not a list"},
		{`[{}]`, "dialects[0] (): methods: none given"},
		{`[{"methods":["/a/b"],"promt":"1"}]`, `dialects[0]: unknown field "promt"`},
		{`[{"methods":["/a/b"],"messages":{"rol":"1"}}]`, `dialects[0].messages: unknown field "rol"`},
		{`[{"methods":["/a/b"],"prompt":"1","prompt":"2"}]`, "dialects[0].prompt: it is there twice"},
		{`[{"methods":"/a/b"}]`, "dialects[0].methods: it is a string, not a list"},
		{`[{"methods":["/a/b"]},{"methods":["a/b"]}]`, `dialects[1] (a/b): methods: "a/b" is not of the form /package.Service/Method`},
		{`[{"methods":["/a/b/c"]}]`, "is not of the form"},
		{`[{"methods":["/a/b"],"tokens":"4..1"}]`, `dialects[0] (/a/b): tokens: "4..1": at ".1": want a field number or name`},
		{`[{"methods":["/a/b"],"tokens":"4."}]`, `at "": want a field number`},
		{`[{"methods":["/a/b"],"tokens":"4|"}]`, `at "": want a field number`},
		{`[{"methods":["/a/b"],"tokens":"0"}]`, `"0" is no field number`},
		{`[{"methods":["/a/b"],"tokens":"536870912"}]`, "is no field number"},
		{`[{"methods":["/a/b"],"tokens":"a-b"}]`, `at "a-b": want a field number or name`},
		{`[{"methods":["/a/b"],"tokens":"4[x"}]`, `at "4[x": want`},
		{`[{"methods":["/a/b"],"tokens":"4[x]y"}]`, `at "4[x]y": want`},
		{`[{"methods":["/a/b"],"tokens":4.10}]`, `dialects[0].tokens: want a path in quotes, such as "4.1", not 4.10`},
		{`[{"methods":["/a/b"],"messages":{"path":"1","role":"2"}}]`, `messages.content: it is not set`},
		{`[{"methods":["/a/b"],"usage":{"cached":"x y"}}]`, "usage.cached:"},
		{`[{"methods":["/a/b"],"request_id":"1","abort":"Abort"}]`, `abort: "Abort" is not of the form`},
		{`[{"methods":["/a/b"],"abort":"/a/Abort"}]`, "abort: request_id is not set"},
		{`[{"like":"/a/b"}]`, `dialects[0] (/a/b): like: no built-in dialect for method "/a/b"`},
		{`[{"methods":["/a/b"]},{"methods":["/a/b"]}]`, "dialects[1] (/a/b): methods: /a/b is described twice"},
		{`[null]`, "methods: none given"},
		{`[{"methods":["/a/b"]}`, "it is not JSON"},
	} {
		_, err := ParseDialects(json.RawMessage(tt.config))
		require.ErrorContains(t, err, tt.want, tt.config)
	}
}

func TestLike(t *testing.T) {
	const stream = "/inference.GRPCInferenceService/ModelStreamInfer"
	require.False(t, mustTable(t).Lookup(stream).DeferStream())
	table := mustTable(t, dialect.Dialect{Like: stream, DeferStream: true})
	require.True(t, table.Lookup(stream).DeferStream())
	require.False(t, table.Lookup("/inference.GRPCInferenceService/ModelInfer").DeferStream())
	require.Equal(t, "m", read(table.Lookup(stream), 0, build(t, nil, pv{"1", "m"})).Model)

	table = mustTable(t, dialect.Dialect{Like: "/vllm.Inference/Generate", Methods: []string{"/fork.Inference/Generate"}, Session: "99", Usage: dialect.Usage{Cached: "1.2"}})
	q := read(table.Lookup("/fork.Inference/Generate"), everything, build(t, nil, pv{"13", "old"}, pv{"99", "new"}, pv{"2", "m"}))
	require.Equal(t, policy.Request{Session: "new", Model: "m"}, q)
	u := policy.NoUsage
	table.Lookup("/fork.Inference/Generate").Usage(&u, build(t, nil, pv{"1.1", uint32(5)}, pv{"1.2", uint32(4)}))
	require.Equal(t, policy.Usage{PromptTokens: 5, OutputTokens: -1, CachedTokens: 4}, u)
}

func TestUserDialect(t *testing.T) {
	table := mustTable(t, dialect.Dialect{
		Methods: []string{"/my.Service/Generate", "/vllm.Inference/Generate"},
		Prompt:  "3|5[].text", Tokens: "4[].ids", Session: "session.id", Messages: &dialect.Messages{Path: "9.turns", Role: "who", Content: "2"},
		Usage: dialect.Usage{Output: "out"},
	})
	for _, m := range []string{"/my.Service/Generate", "/vllm.Inference/Generate"} {
		require.Equal(t, "s", read(table.Lookup(m), everything, build(t, nil, pv{"7:session.3:id", "s"}, pv{"13", "built in"})).Session)
	}
	m := table.Lookup("/my.Service/Generate")
	require.Equal(t, text("a\xfdb"), read(m, everything, build(t, nil, pv{"5#0.1:text", "a"}, pv{"5#1.1:text", "b"})).Prompt)
	require.Equal(t, text("x"), read(m, everything, build(t, nil, pv{"5#0.1:text", "a"}, pv{"3", "x"})).Prompt)
	require.Equal(t, tokens(1, 2, batchToken, 3), read(m, everything, build(t, nil, pv{"4#0.1:ids", []uint32{1, 2}}, pv{"4#1.1:ids", []uint32{3}})).Prompt)
	require.Equal(t, text("\xffu\xfethi"), read(m, everything, build(t, nil, pv{"9.1:turns#0.1:who", "u"}, pv{"9.1:turns#0.2", "hi"})).Prompt)

	byNumber := mustTable(t, dialect.Dialect{Methods: []string{"/a/b"}, Tokens: "4[].1", Prompt: "3|3.2", Messages: &dialect.Messages{Path: "9.1", Role: "1.5", Content: "2"}}).Lookup("/a/b")
	batch := build(t, nil, pv{"4#0.1", []uint32{1, 2}}, pv{"4#1.1", []uint32{3}})
	require.Equal(t, tokens(1, 2, batchToken, 3), read(byNumber, everything, batch).Prompt)
	require.Equal(t, tokens(1, 2, batchToken, 3), read(byNumber, everything, marshal(t, batch)).Prompt)
	turns := build(t, nil, pv{"9.1#0.1.5", "u"}, pv{"9.1#0.2", "hi"}, pv{"9.1#1.2", "yes"})
	require.Equal(t, text("\xffu\xfethi\xff\xfetyes"), read(byNumber, everything, turns).Prompt)
	require.Equal(t, text("\xffu\xfethi\xff\xfetyes"), read(byNumber, everything, marshal(t, turns)).Prompt)
}

func FuzzConfig(f *testing.F) {
	raw, err := yaml.YAMLToJSON([]byte(everyField))
	require.NoError(f, err)
	f.Add([]byte(raw), []byte("\x0a\x01a"))
	f.Add([]byte(`[{"like":"/vllm.Inference/Generate","prompt":"a.b[].c[k]|4"}]`), []byte{0x22, 1, 'x'})
	f.Fuzz(func(t *testing.T, b, msg []byte) {
		ds, err := ParseDialects(b)
		if err != nil {
			require.False(t, strings.Contains(err.Error(), "\n"))
			return
		}
		table, err := NewTable(ds...)
		require.NoError(t, err)
		for _, d := range ds {
			for _, name := range d.Methods {
				m := table.Lookup(name)
				require.NotSame(t, table.Lookup(""), m)
				read(m, everything|WantModel, msg)
				read(m, everything|WantModel, generatedRequest(&genText{Text: "x"}))
				read(m, everything|WantModel, build(t, nil, pv{"1:a.2:b", "x"}, pv{"3[k]", "y"}, pv{"4#0.1", ids}))
				u := policy.NoUsage
				m.readUsage(&u, msg)
				m.readUsage(&u, &genResponse{Outputs: []*genOutput{{NumTokens: 1}}})
			}
		}
	})
}
