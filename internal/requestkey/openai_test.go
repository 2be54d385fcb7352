package requestkey

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/state"
)

func readBodyOf(t testing.TB, body string) policy.Request {
	t.Helper()
	var q policy.Request
	o := objectOf(jsonValue{b: []byte(body)}, bodyNames)
	o.fill(&q, true, true)
	return q
}

func TestChatBodies(t *testing.T) {
	for _, tt := range []struct{ name, body, want string }{
		{"one", `{"messages":[{"role":"user","content":"hi"}]}`, "\xffuser\xfethi"},
		{"members in any order", ` { "stream" : true , "messages" : [ { "content" : "hi" , "role" : "user" } ] } `, "\xffuser\xfethi"},
		{"escapes", `{"messages":[{"role":"user","content":"a\n\"b\" \u00e9 \ud83d\ude00 \ud800 \/"}]}`, "\xffuser\xfeta\n\"b\" é 😀 \uFFFD /"},
		{"escaped keys", `{"\u006dessages":[{"r\u006fle":"user","content":"hi"}]}`, "\xffuser\xfethi"},
		{"several", `{"messages":[{"role":"system","content":"s"},{"role":"user","name":"bob","content":"hi"},{"role":"assistant","content":null,"refusal":"no"}]}`,
			"\xffsystem\xfets\xffuser\xfenbob\xfethi\xffassistant\xfefno"},
		{"text parts", `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"},"c"]}]}`, "\xffuser\xfeta\xfetb\xfetc"},
		{"image", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"detail":"low","url":"http://x"}},{"type":"text","text":"what?"}]}]}`,
			"\xffuser\xfemimage_url " + hash128("http://x") + "\xfetwhat?"},
		{"tool call", `{"messages":[{"role":"assistant","content":"","tool_calls":[{"type":"function","function":{"arguments":"{\"a\":1}","name":"f"},"id":"c1"}]},{"role":"tool","tool_call_id":"c1","content":"2"}]}`,
			"\xffassistant\xfet\xfecf\xfea{\"a\":1}\xfeic1\xfftool\xferc1\xfet2"},
		{"old function call", `{"messages":[{"role":"assistant","function_call":{"name":"f","arguments":{"a":1}}}]}`, "\xffassistant\xfecf\xfea{\"a\":1}"},
		{"reasoning", `{"messages":[{"role":"assistant","reasoning_content":"hm","content":"a"}]}`, "\xffassistant\xfekhm\xfeta"},
		{"tools ahead", `{"messages":[{"role":"user","content":"hi"}],"tools":[{"f":1},{"f":2}]}`, "\xfeT{\"f\":1}\xfeT{\"f\":2}\xffuser\xfethi"},
		{"tools by value", `{"tools":[{"type":"function", "function": {"parameters":{"b":[1, "\u00e9"],"a":{ }},"name":"f"}, "type":"function"}],"messages":["hi"]}`,
			"\xfeT" + `{"function":{"name":"f","parameters":{"a":{},"b":[1,"é"]}},"type":"function"}` + "\xff\xfethi"},
		{"documents", `{"messages":["hi"],"documents":[{"title":"t","text":"x"}, "y"]}`, "\xfeD" + `{"text":"x","title":"t"}` + "\xfeD\"y\"\xff\xfethi"},
		{"system", `{"system":"be brief","messages":[{"role":"user","content":"hi"}]}`, "\xffsystem\xfetbe brief\xffuser\xfethi"},
		{"system of parts", `{"messages":[{"role":"user","content":"hi"}],"system":[{"type":"text","text":"be","cache_control":{}},{"type":"text","text":"brief"}]}`,
			"\xffsystem\xfetbe\xfetbrief\xffuser\xfethi"},
		{"last messages count", `{"messages":[{"role":"a"}],"messages":[{"role":"b"}]}`, "\xffb"},
		{"null messages", `{"messages":null,"prompt":"p"}`, "p"},
		{"chat before prompt", `{"prompt":"p","messages":[{"role":"b"}]}`, "\xffb"},
		{"turns that are no objects", `{"messages":["hi",3,null]}`, "\xff\xfethi\xff\xff"},
		{"bytes that are no text", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\xff\xfeb\"}]}", "\xffuser\xfeta\uFFFD\uFFFDb"},

		{"prompt", `{"prompt":"hello"}`, "hello"},
		{"text of SGLang", `{"text":["ab","c"],"sampling_params":{}}`, "ab\xfdc"},
		{"format of a response", `{"text":{"format":{"type":"text"}},"input":"hi"}`, "hi"},
		{"prompts", `{"prompt":["ab","c"]}`, "ab\xfdc"},
		{"one prompt", `{"prompt":["ab"]}`, "ab"},
		{"embedding", `{"input":["ab","c"]}`, "ab\xfdc"},
		{"response", `{"input":"hi"}`, "hi"},
		{"response with instructions", `{"instructions":"be brief","input":"hi"}`, "\xffsystem\xfetbe brief\xffuser\xfethi"},
		{"items", `{"instructions":"be brief","input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"ho"}]}],"tools":[{"f":1}]}`,
			"\xfeT{\"f\":1}\xffsystem\xfetbe brief\xffuser\xfethi\xffassistant\xfetho"},
		{"items without a role", `{"input":[{"type":"function_call_output","call_id":"1","output":"2"}]}`,
			"\xff\xfemfunction_call_output " + hash128(`{"type":"function_call_output","call_id":"1","output":"2"}`)},
		{"cut in an item", `{"input":[{"role":"user","content":"hi"},{"type":"function_call_output","output":"2`, "\xffuser\xfethi"},
		{"no prompt", `{"prompt":{"a":1},"input":true}`, ""},
		{"no JSON", `hello`, ""},
		{"list", `[{"messages":[{"role":"user"}]}]`, ""},

		{"cut in a text", `{"messages":[{"role":"system","content":"s"},{"role":"user","content":"hello wo`, "\xffsystem\xfets\xffuser\xfethello wo"},
		{"cut in an escape", `{"messages":[{"role":"user","content":"hello\u00`, "\xffuser\xfethello"},
		{"cut after a backslash", `{"messages":[{"role":"user","content":"hello\`, "\xffuser\xfethello"},
		{"cut in a pair", `{"messages":[{"role":"user","content":"hello\ud83d`, "\xffuser\xfethello"},
		{"cut in a rune", "{\"messages\":[{\"role\":\"user\",\"content\":\"hello\xc3", "\xffuser\xfethello"},
		{"cut in a prompt", `{"prompt":"hello wo`, "hello wo"},
		{"cut in a list", `{"prompt":["ab","c`, "ab\xfdc"},
		{"wrong from here on", `{"prompt":"p" "messages":[{"role":"user"}]}`, "p"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, text(tt.want), readBodyOf(t, tt.body).Prompt)
		})
	}
}

func hash128(s string) string {
	long := strings.Repeat("x", MaxSession+1)
	if s == "" {
		return state.SessionKey(long)
	}
	return fmt.Sprintf("%x", xxh128(s))
}

func TestTokenBodies(t *testing.T) {
	for body, want := range map[string][]uint32{
		`{"prompt":[1,2,300]}`:           {1, 2, 300},
		`{"prompt":[[1,2],[3]]}`:         {1, 2, batchToken, 3},
		`{"prompt":[[1],[2,3]]}`:         {1, batchToken, 2, 3},
		`{"prompt":[[1,2]]}`:             {1, 2},
		`{"input_ids":[4],"prompt":"x"}`: {4},
		`{"token_ids":[4],"prompt":"x"}`: {4},
		`{"prompt":[1,2,3`:               {1, 2}, // 3 may have been 30
		`{"prompt":[[1,2],[3,4`:          {1, 2, batchToken, 3},
		`{"prompt":[1,"a",2.5,null]}`:    nil,
	} {
		require.Equal(t, want, readBodyOf(t, body).Prompt.Tokens, body)
	}
}

func TestConversationsNeverCollapse(t *testing.T) {
	seen := map[string]string{}
	for _, body := range []string{
		`{"messages":[{"role":"user","content":"ab"},{"role":"user","content":"c"}]}`,
		`{"messages":[{"role":"user","content":"a"},{"role":"user","content":"bc"}]}`,
		`{"messages":[{"role":"user","content":"abc"}]}`,
		`{"messages":[{"role":"system","content":"abc"}]}`,
		`{"messages":[{"role":"","content":"userabc"}]}`,
		`{"messages":[{"role":"user","content":["ab","c"]}]}`,
		`{"messages":[{"role":"user","content":["a","bc"]}]}`,
		`{"messages":[{"role":"user","name":"ab","content":"c"}]}`,
		`{"messages":[{"role":"user","content":"abc","tool_call_id":"x"}]}`,
		`{"messages":[{"role":"user","content":"abc"}],"tools":[{}]}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"a"}}]}]}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"b"}}]}]}`,
		`{"messages":[{"role":"user","content":[{"type":"video_url","video_url":{"url":"b"}}]}]}`,
		`{"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"b","format":"wav"}}]}]}`,
		`{"messages":[{"role":"user","content":[{"type":"new","x":1}]}]}`,
		`{"messages":[{"role":"user","content":[{"type":"new","x":2}]}]}`,
		`{"input":[{"type":"function_call_output","output":"abc"}]}`, `{"input":[{"type":"function_call_output","output":"c"}]}`,
		`{"prompt":"abc"}`, `{"prompt":["ab","c"]}`, `{"prompt":["a","bc"]}`, `{"prompt":["","abc"]}`,
		`{"messages":[{"role":"user\u00ff\u00fetabc"}]}`,
	} {
		got := readBodyOf(t, body).Prompt.Text
		require.NotEmpty(t, got)
		require.Empty(t, seen[got], body)
		seen[got] = body
	}
	for _, s := range []string{"\xff", "\xfe", "\xfb", "\xfb\x04", "\xfd"} { // bytes, in messages that do not check
		got := string(appendTurn(nil, "user", s))
		require.Empty(t, seen[got])
		seen[got] = s
	}
}

// One more turn only appends, however the conversation goes on.
func TestRenderingIsAppendOnly(t *testing.T) {
	turns := []string{
		`{"role":"system","content":"You are \"helpful\"."}`,
		`{"role":"user","content":[{"type":"text","text":"look"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}`,
		`{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}`,
		`{"role":"tool","tool_call_id":"1","content":"42"}`,
		`{"content":"thanks","role":"user"}`,
	}
	last := ""
	for n := 1; n <= len(turns); n++ {
		got := readBodyOf(t, `{"messages":[`+strings.Join(turns[:n], ",")+`],"tools":[{"name":"f"}]}`).Prompt.Text
		require.True(t, strings.HasPrefix(got, last) && len(got) > len(last))
		last = got
	}
	whole := `{"messages":[` + strings.Join(turns, ",") + `]}`
	want := readBodyOf(t, whole).Prompt.Text
	for n := range whole { // cut anywhere, what is left is a prefix
		got := readBodyOf(t, whole[:n]).Prompt.Text
		require.True(t, strings.HasPrefix(want, got), "%d %q", n, got)
	}
}

func TestBodyScalars(t *testing.T) {
	for _, tt := range []struct {
		body string
		want policy.Request
	}{
		{`{"session_id":"a","session_params":{"session_id":"b"},"prompt_cache_key":"c","user":"d"}`, policy.Request{Session: "a"}},
		{`{"user":"d","prompt_cache_key":"c","session_params":{"id":"x","session_id":"b"}}`, policy.Request{Session: "b"}},
		{`{"user":"d","prompt_cache_key":"c","session_params":{"id":"x"}}`, policy.Request{Session: "x"}},
		{`{"user":"d","prompt_cache_key":"c","session_id":""}`, policy.Request{Session: "c"}},
		{`{"prompt_cache_key":"c","conversation":"conv_1","previous_response_id":"resp_1"}`, policy.Request{Session: "conv_1"}},
		{`{"prompt_cache_key":"c","conversation":{"id":"conv_1"}}`, policy.Request{Session: "conv_1"}},
		{`{"previous_response_id":"resp_1"}`, policy.Request{Session: "resp_1"}},
		{`{"previous_response_id":null,"conversation":null}`, policy.Request{}},
		{`{"user":"d","session_id":null}`, policy.Request{Session: "d"}},
		{`{"user":17}`, policy.Request{Session: "17"}},
		{`{"user":{"id":1}}`, policy.Request{}},
		{`{"metadata":{"user":"x"},"x":["user","y"],"y":"\"user\":\"z\""}`, policy.Request{}},
		{`{"model":"base:lora:2"}`, policy.Request{Model: "base:lora:2"}},
		{`{"model":"base","lora_path":"l"}`, policy.Request{Model: "base", Adapter: "l"}},
		{`{"model":"base:lora","lora_path":"l"}`, policy.Request{Model: "base:lora", Adapter: "l"}},
		{`{"cache_salt":"a"}`, policy.Request{CacheSalt: "a"}},
		{`{"extra_key":"b"}`, policy.Request{CacheSalt: "b"}},
		{`{"extra_key":"b","cache_salt":"a"}`, policy.Request{CacheSalt: "a\x00b"}},
		{`{"model":"m","user":"ab`, policy.Request{Model: "m"}},
	} {
		require.Equal(t, tt.want, readBodyOf(t, tt.body), tt.body)
	}
	q := readBodyOf(t, `{"session_id":"`+strings.Repeat("x", MaxSession+1)+`"}`)
	require.Len(t, q.Session, 32)
}

// A known mistake of other implementations: a "user" inside the prompt is no session.
func TestUserInsideThePrompt(t *testing.T) {
	q := readBodyOf(t, `{"messages":[{"role":"user","content":"my json: {\"user\": \"mallory\", \"session_id\": \"x\", \"model\":\"evil\"}"}],"user":"alice"}`)
	require.Equal(t, "alice", q.Session)
	require.Empty(t, q.Model)
	q = readBodyOf(t, `{"messages":[{"role":"user","session_id":"x","user":"y","content":"\"user\":\"mallory\""}]}`)
	require.Empty(t, q.Session)
}

func TestUsageBodies(t *testing.T) {
	for body, want := range map[string]policy.Usage{
		`{"usage":{"prompt_tokens":3}}`: {PromptTokens: 3, OutputTokens: -1, CachedTokens: -1},
		`{"usage":{"prompt_tokens":3,"prompt_tokens_details":null,"completion_tokens":0}}`:       {PromptTokens: 3, OutputTokens: 0, CachedTokens: -1},
		`{"usage":{"prompt_tokens_details":{"cached_tokens":0}}}`:                                {PromptTokens: -1, OutputTokens: -1, CachedTokens: 0},
		`{"usage":{"prompt_tokens":0,"input_tokens":5,"completion_tokens":0,"output_tokens":7}}`: {PromptTokens: 5, OutputTokens: 7, CachedTokens: -1},
		`data: [DONE]`: policy.NoUsage,
		`{"choices":[{"usage":{"prompt_tokens":3}}]}`:            policy.NoUsage,
		`{"usage":{"prompt_tokens":3`:                            policy.NoUsage,
		`{"usage":{"prompt_tokens":-3,"completion_tokens":2.5}}`: policy.NoUsage,
	} {
		u := policy.NoUsage
		require.Equal(t, want != policy.NoUsage, ReadUsage(&u, []byte(body)), body)
		require.Equal(t, want, u, body)
	}
}

func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"a":"b"}`, `{"messages":[{"role":"user","content":[{"type":"text","text":"\ud83d\ude00"}]}],"prompt":[[1,2],[3]],"user":"x"}`,
		`["\\\"",{"a":[1.5e3,null,true]}]`, `{"usage":{"prompt_tokens":1}}`, `{"prompt":"a`, `"\u12`, `{"a" :`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		var q policy.Request
		o := objectOf(jsonValue{b: b}, bodyNames)
		o.fill(&q, true, true)
		u := policy.NoUsage
		ReadUsage(&u, b)
		require.Equal(t, before, b)
		var members map[string]json.RawMessage
		if json.Unmarshal(b, &members) != nil {
			return
		}
		// On valid input the results agree with encoding/json.
		got := map[string]json.RawMessage{}
		whole := jsonValue{b: b}.each("{}", func(key string, v jsonValue) {
			require.False(t, v.cut)
			got[strings.Clone(key)] = v.b
		})
		if members == nil { // null
			return
		}
		require.True(t, whole)
		require.Equal(t, members, got)
		for _, v := range members {
			var want string
			s, ok := jsonValue{b: v}.text()
			if err := json.Unmarshal(v, &want); err == nil && v[0] == '"' {
				require.True(t, ok)
				require.Equal(t, want, s)
			} else {
				require.False(t, ok)
			}
		}
	})
}
