package requestkey_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	_ "google.golang.org/grpc/interop/grpc_testing" // whose methods are linked
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/requestkey"
)

// messageType compiles the message Request of a file given in text format.
func messageType(t testing.TB, file string) protoreflect.MessageDescriptor {
	t.Helper()
	fd := &descriptorpb.FileDescriptorProto{}
	require.NoError(t, prototext.Unmarshal([]byte(`name: "t.proto" package: "t" syntax: "proto3" dependency: "google/protobuf/struct.proto" `+file), fd))
	d, err := protodesc.NewFile(fd, protoregistry.GlobalFiles)
	require.NoError(t, err)
	return d.Messages().ByName("Request")
}

// field is a field of a message type in text format; kind is a scalar's or a message's.
func field(name string, num int, kind string, repeated bool) string {
	label, typ := "LABEL_OPTIONAL", "type: TYPE_"+kind
	if repeated {
		label = "LABEL_REPEATED"
	}
	if kind[0] == '.' {
		typ = fmt.Sprintf("type: TYPE_MESSAGE type_name: %q", kind)
	}
	return fmt.Sprintf("field { name: %q number: %d label: %s %s } ", name, num, label, typ)
}

func messageOf(t testing.TB, d protoreflect.MessageDescriptor, json string) *dynamicpb.Message {
	t.Helper()
	m := dynamicpb.NewMessage(d)
	require.NoError(t, protojson.Unmarshal([]byte(json), m))
	return m
}

func keyOf(t testing.TB, d dialect.Dialect, msg any) (policy.Request, error) {
	t.Helper()
	if len(d.Methods) == 0 {
		d.Methods = []string{"/x.Y/Z"}
	}
	table, err := requestkey.NewTable(d)
	require.NoError(t, err)
	var q policy.Request
	err = table.Lookup(d.Methods[0]).Request(&q, policy.UsesPrompt|policy.UsesSession, msg)
	return q, err
}

// Issue 12.5: a content that is a list of parts, a google.protobuf.Value or a ListValue is read as the HTTP endpoint
// reads it in JSON: text parts as text, media by their uuid, hash or address, other parts by their hash.
func TestContentsThatAreMessages(t *testing.T) {
	part := `message_type { name: "Part" ` + field("type", 1, "STRING", false) + field("text", 2, "STRING", false) +
		field("image_url", 3, ".t.Url", false) + field("uuid", 4, "STRING", false) + field("score", 5, "INT32", false) + `} ` +
		`message_type { name: "Url" ` + field("url", 1, "STRING", false) + `} `
	types := map[string]protoreflect.MessageDescriptor{}
	for name, content := range map[string]string{
		"parts": field("content", 2, ".t.Part", true), "part": field("content", 2, ".t.Part", false),
		"value": field("content", 2, ".google.protobuf.Value", false), "list": field("content", 2, ".google.protobuf.ListValue", false),
		"texts": field("content", 2, "STRING", true),
	} {
		types[name] = messageType(t, part+`message_type { name: "Turn" `+field("role", 1, "STRING", false)+content+`} message_type { name: "Request" `+
			field("messages", 1, ".t.Turn", true)+`}`)
	}
	const text, image = `{"type":"text","text":"a question"}`, `{"type":"image_url","image_url":{"url":"https://x/1"}}`
	for _, tt := range []struct{ kind, content string }{
		{"parts", `[` + text + `]`}, {"parts", `[` + text + `,` + image + `,` + text + `]`}, {"parts", `[{"type":"image_url","uuid":"u","image_url":{"url":"https://x/2"}}]`},
		{"part", text}, {"value", `"a question"`}, {"value", `[` + text + `,` + image + `]`}, {"list", `[` + text + `]`}, {"texts", `["a", "question"]`},
	} {
		body := `{"messages":[{"role":"user","content":` + tt.content + `},{"role":"assistant","content":` + tt.content + `}]}`
		want := policy.Request{}
		asJSON := body
		if tt.kind == "part" {
			asJSON = `{"messages":[{"role":"user","content":[` + tt.content + `]},{"role":"assistant","content":[` + tt.content + `]}]}`
		}
		_, err := requestkey.ReadBody(&want, []byte(asJSON))
		require.NoError(t, err)
		for _, d := range []dialect.Dialect{
			{Messages: &dialect.Messages{Path: "1", Role: "1", Content: "2"}},
			{Messages: &dialect.Messages{Path: "messages", Role: "role", Content: "content"}},
		} {
			q, err := keyOf(t, d, messageOf(t, types[tt.kind], body))
			require.NoError(t, err, body)
			require.Equal(t, want.Prompt.Text, q.Prompt.Text, body)
		}
	}
	different := map[string]string{}
	for _, content := range []string{`[{"score":1}]`, `[{"score":2}]`, `[` + image + `]`, `[{"type":"image_url","uuid":"u"}]`, `[{"type":"image_url","uuid":"v"}]`} {
		q, err := keyOf(t, dialect.Dialect{Messages: &dialect.Messages{Path: "1", Role: "1", Content: "2"}},
			messageOf(t, types["parts"], `{"messages":[{"role":"user","content":`+content+`}]}`))
		require.NoError(t, err)
		require.Empty(t, different[q.Prompt.Text], content)
		different[q.Prompt.Text] = content
	}
}

// Issue 12.5: turns with unreadable content give no prompt and an error. A turn with a tool call instead of
// content is that call.
func TestContentsThatCannotBeRead(t *testing.T) {
	turn := func(content string) protoreflect.MessageDescriptor {
		return messageType(t, `message_type { name: "Call" `+field("name", 1, "STRING", false)+`} message_type { name: "Turn" `+
			field("role", 1, "STRING", false)+content+field("call", 9, ".t.Call", false)+`} message_type { name: "Request" `+field("messages", 1, ".t.Turn", true)+`}`)
	}
	messages := dialect.Dialect{Messages: &dialect.Messages{Path: "1", Role: "1", Content: "2"}}
	for name, x := range map[string]struct {
		d       protoreflect.MessageDescriptor
		content string
	}{
		"a number": {turn(field("content", 2, "DOUBLE", false)), `"content":2`},
		"absent":   {turn(""), `"call":{}`},
		"empty":    {turn(field("content", 2, "STRING", false)), `"content":""`},
		"no text":  {turn(field("content", 2, ".google.protobuf.Value", false)), `"content":3`},
	} {
		q, err := keyOf(t, messages, messageOf(t, x.d, `{"messages":[{"role":"user",`+x.content+`},{"role":"user",`+x.content+`}]}`))
		require.True(t, q.Prompt.Empty(), name)
		require.ErrorIs(t, err, requestkey.ErrContent, name)
	}
	parts := turn(field("content", 2, ".t.Call", true))
	q, err := keyOf(t, dialect.Dialect{Messages: &dialect.Messages{Path: "1", Role: "1", Content: "2[].7"}},
		messageOf(t, parts, `{"messages":[{"role":"user","content":[{"name":"x"}]}]}`))
	require.True(t, q.Prompt.Empty())
	require.ErrorIs(t, err, requestkey.ErrContent)

	for _, image := range []string{"a", "b"} { // next to an empty text, and next to another one
		msg := "\x0a\x0f\x0a\x01u\x12\x05\x0a\x00\x12\x01" + image + "\x12\x03\x0a\x01x"
		q, err = keyOf(t, dialect.Dialect{Messages: &dialect.Messages{Path: "1", Role: "1", Content: "2[].1"}}, []byte(msg))
		require.True(t, q.Prompt.Empty())
		require.ErrorIs(t, err, requestkey.ErrContent)
	}
	q, err = keyOf(t, messages, []byte("\x0a\x05\x0a\x01u\x10\x00"))
	require.NoError(t, err)
	require.Equal(t, "\xffu\xfet0", q.Prompt.Text, "a number that is encoded")

	d := turn(field("content", 2, "STRING", false))
	chat := func(call string) string {
		msg := messageOf(t, d, `{"messages":[{"role":"user","content":"hi"},{"role":"assistant","call":{"name":"`+call+`"}},{"role":"user","content":"yes"}]}`)
		q, err := keyOf(t, messages, msg)
		require.NoError(t, err)
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
		require.NoError(t, err)
		same, err := keyOf(t, messages, raw)
		require.NoError(t, err)
		require.Equal(t, q.Prompt.Text, same.Prompt.Text)
		return q.Prompt.Text
	}
	require.Equal(t, chat("a"), chat("a"))
	require.NotEqual(t, chat("a"), chat("b"))
}

// A part of a content may be in a list inside a list, and so may the position of a medium.
func TestListsInsideLists(t *testing.T) {
	file := `message_type { name: "Leaf" ` + field("text", 1, "STRING", false) + field("offset", 2, "UINT32", false) + field("other", 3, "STRING", false) + `}
		message_type { name: "Group" ` + field("leaves", 3, ".t.Leaf", true) + field("name", 4, "STRING", false) + `}
		message_type { name: "Turn" ` + field("role", 1, "STRING", false) + field("groups", 2, ".t.Group", true) + field("ids", 6, "STRING", true) + `}
		message_type { name: "Request" ` + field("messages", 1, ".t.Turn", true) + field("tokens", 2, "UINT32", true) + `}`
	d := messageType(t, file)
	keys := func(use dialect.Dialect, json string) (q policy.Request, err error) {
		msg := messageOf(t, d, json)
		raw, _ := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
		q, err = keyOf(t, use, msg)
		encoded, encodedErr := keyOf(t, use, raw)
		require.Equal(t, q, encoded, json)
		require.Equal(t, err, encodedErr, json)
		return q, err
	}
	chat := dialect.Dialect{Messages: &dialect.Messages{Path: "1", Role: "1", Content: "2[].3[].1"}}
	for content, want := range map[string]string{
		`[{"leaves":[{"text":"a"},{"text":"b"}]},{"leaves":[{"text":"c"}]}]`: `["a","b","c"]`,
		`[{"leaves":[{"text":"a"}]},{},{"leaves":[{"text":"b"},{}]}]`:        `["a","b"]`,
	} {
		var body policy.Request
		_, err := requestkey.ReadBody(&body, []byte(`{"messages":[{"role":"user","content":`+want+`}]}`))
		require.NoError(t, err)
		q, err := keys(chat, `{"messages":[{"role":"user","groups":`+content+`}]}`)
		require.NoError(t, err, content)
		require.Equal(t, body.Prompt.Text, q.Prompt.Text, content)
	}
	for _, content := range []string{
		`[{"leaves":[{"text":"a"},{"other":"x"}]}]`,
		`[{"leaves":[{"text":"a"}]},{"leaves":[{"other":"x"}]}]`,
		`[{"leaves":[{"text":"a"}]},{"name":"no leaves"}]`,
		`[{"name":"no leaves"},{"leaves":[{"text":"a"}]}]`,
	} {
		q, err := keys(chat, `{"messages":[{"role":"user","groups":`+content+`}]}`)
		require.ErrorIs(t, err, requestkey.ErrContent, content)
		require.True(t, q.Prompt.Empty(), content)
	}

	media := dialect.Dialect{Tokens: "2", Media: &dialect.Media{Path: "1", ID: "6[]", Offset: "2[].3[].2"}}
	changed := func(groups string, ids ...string) (at []int) {
		quoted := `"` + strings.Join(ids, `","`) + `"`
		q, err := keys(media, `{"tokens":[0,0,0,0,0,0],"messages":[{"ids":[`+quoted+`],"groups":`+groups+`}]}`)
		require.NoError(t, err)
		require.Empty(t, q.CacheSalt, groups)
		for i, id := range q.Prompt.Tokens {
			if id != 0 {
				at = append(at, i)
			}
		}
		return at
	}
	require.Equal(t, []int{1, 3, 5}, changed(`[{"leaves":[{"offset":1},{"offset":3}]},{"leaves":[{"offset":5}]}]`, "a", "b", "c"))
	require.Equal(t, []int{0, 3, 5}, changed(`[{"leaves":[{},{"offset":3}]},{"leaves":[{"offset":5}]}]`, "a", "b", "c"))
	require.Equal(t, []int{0, 2}, changed(`[{"leaves":[{"offset":2}]},{"leaves":[{}]}]`, "a", "b"))
	require.Equal(t, []int{0, 2}, changed(`[{},{"leaves":[{"offset":2}]}]`, "a", "b")) // as a medium without its zero
}

// The last value of a field that is encoded twice counts.
func TestOffsetTwice(t *testing.T) {
	d := dialect.Dialect{Tokens: "2", Media: &dialect.Media{Path: "3", ID: "2", Offset: "1"}}
	q, err := keyOf(t, d, []byte("\x12\x03\x07\x07\x07\x1a\x07\x08\x00\x08\x02\x12\x01a"))
	require.NoError(t, err)
	require.Empty(t, q.CacheSalt)
	require.Equal(t, []uint32{7, 7}, q.Prompt.Tokens[:2])
	require.NotEqual(t, uint32(7), q.Prompt.Tokens[2])
}

// Issue 12.5: a path that does not exist in the messages of a linked service is refused, with its field.
func TestPathsOfALinkedServiceAreChecked(t *testing.T) {
	const method = "/grpc.testing.TestService/UnaryCall"
	for path, d := range map[string]dialect.Dialect{
		`prompt: "3"`:           {Prompt: "3"}, // a message
		`prompt: "99"`:          {Prompt: "99.1"},
		`tokens: "3.2"`:         {Tokens: "3.2"}, // bytes
		`session: "body"`:       {Session: "body"},
		`messages.path: "1"`:    {Messages: &dialect.Messages{Path: "1", Role: "1", Content: "2"}},
		`messages.content: "9"`: {Messages: &dialect.Messages{Path: "3", Role: "1", Content: "9"}},
		`usage.cached: "1"`:     {Usage: dialect.Usage{Cached: "1"}}, // a message
	} {
		d.Methods = []string{method}
		_, err := requestkey.NewTable(d)
		require.ErrorContains(t, err, "dialects[0] ("+method+"): "+path[:len(path)-1])
		require.ErrorContains(t, err, "grpc.testing.Simple")
	}
	for _, d := range []dialect.Dialect{
		{Prompt: "99|3.2"}, {Prompt: "payload.body"}, {Like: "/vllm.Inference/Generate", Prompt: "3.2"}, {Usage: dialect.Usage{JSON: "1.2"}},
	} {
		d.Methods = []string{method}
		_, err := requestkey.NewTable(d)
		require.NoError(t, err)
	}
	_, err := requestkey.NewTable(dialect.Dialect{Methods: []string{"/grpc.testing.TestService/Other"}})
	require.ErrorContains(t, err, "the service grpc.testing.TestService has no method Other")
}

// Issue 12.7: media next to token ids are part of the prompt from the block of their placeholder on, or of all of
// it where the position is unknown. Two images never have the same key, and the same image has the same key again.
func TestMediaBesideTokenIDs(t *testing.T) {
	builtin, err := requestkey.NewTable()
	require.NoError(t, err)
	items := messageType(t, `message_type { name: "Features" `+field("kwargs", 1, "BYTES", false)+field("offset", 3, "UINT64", false)+field("mm_hash", 5, "STRING", false)+`}
		message_type { name: "Item" `+field("url", 2, "STRING", false)+field("raw_bytes", 4, "BYTES", false)+field("uuid", 6, "STRING", false)+field("features", 7, ".t.Features", false)+`}
		message_type { name: "Ids" `+field("ids", 1, "UINT32", true)+`}
		message_type { name: "Request" `+field("token_ids", 4, ".t.Ids", false)+field("media", 14, ".t.Item", true)+`}`)
	inputs := func(number, hashes, places int) protoreflect.MessageDescriptor {
		return messageType(t, `message_type { name: "Range" `+field("offset", 1, "UINT32", false)+field("length", 2, "UINT32", false)+`}
			message_type { name: "Inputs" `+field("mm_hashes", hashes, "STRING", true)+field("mm_placeholders", places, ".t.Range", true)+`}
			message_type { name: "Tokenized" `+field("input_ids", 2, "UINT32", true)+`}
			message_type { name: "Request" `+field("tokenized", 2, ".t.Tokenized", false)+field("mm_inputs", number, ".t.Inputs", false)+`}`)
	}
	api := messageType(t, `message_type { name: "Ids" `+field("ids", 1, "UINT32", true)+`} message_type { name: "One" `+field("one", 1, ".t.Ids", false)+`}
		message_type { name: "Media" `+field("source", 1, "STRING", false)+`}
		message_type { name: "Request" `+field("input_ids", 3, ".t.One", false)+field("image_data", 19, ".t.Media", false)+field("mm_hashes", 20, ".t.Media", false)+
		field("video_data", 21, ".t.Media", false)+field("audio_data", 22, ".t.Media", false)+`}`)
	const ids, tokenized = `"token_ids":{"ids":[1,2,9,9,9,9,3,4,9,9,5]}`, `"tokenized":{"input_ids":[1,2,9,9,9,9,3,4,9,9,5]}`
	const flat = `"input_ids":{"one":{"ids":[1,2,9,9,9,9,3,4,9,9,5]}}`
	engine, sglang := inputs(7, 6, 5), inputs(3, 1, 11)
	for _, tt := range []struct {
		method string
		d      protoreflect.MessageDescriptor
		fields []string // of different media; the first has none
		shared int      // tokens before the first placeholder that they share; 0 = none
	}{
		{"/vllm.Inference/Generate", items, []string{ids, ids + `,"media":[{"uuid":"a"}]`, ids + `,"media":[{"uuid":"b","url":"x"}]`, ids + `,"media":[{"raw_bytes":"AAAA"}]`,
			ids + `,"media":[{"raw_bytes":"AAAB"}]`, ids + `,"media":[{"uuid":"a"},{"uuid":"b"}]`, ids + `,"media":[{"uuid":"b"},{"uuid":"a"}]`}, 0},
		{"/vllm.Inference/GenerateStream", items, []string{ids, ids + `,"media":[{"features":{"offset":2,"mm_hash":"a"}}]`, ids + `,"media":[{"features":{"offset":2,"mm_hash":"b"}}]`,
			ids + `,"media":[{"features":{"offset":2,"mm_hash":"a"}},{"features":{"offset":8,"mm_hash":"b"}}]`}, 2},
		{"/vllm.grpc.engine.VllmEngine/Generate", engine, []string{tokenized,
			tokenized + `,"mm_inputs":{"mm_hashes":["a"],"mm_placeholders":[{"offset":2,"length":4}]}`, tokenized + `,"mm_inputs":{"mm_hashes":["b"],"mm_placeholders":[{"offset":2,"length":4}]}`,
			tokenized + `,"mm_inputs":{"mm_hashes":["a","b"],"mm_placeholders":[{"offset":2,"length":4},{"offset":8,"length":2}]}`}, 2},
		{"/vllm.grpc.engine.VllmEngine/Generate", engine, []string{tokenized, // an offset of 0 is not encoded
			tokenized + `,"mm_inputs":{"mm_hashes":["a"],"mm_placeholders":[{"length":4}]}`, tokenized + `,"mm_inputs":{"mm_hashes":["b"],"mm_placeholders":[{"length":4}]}`}, 0},
		{"/sglang.grpc.scheduler.SglangScheduler/Generate", sglang, []string{tokenized,
			tokenized + `,"mm_inputs":{"mm_hashes":["a"],"mm_placeholders":[{"offset":2,"length":4}]}`, tokenized + `,"mm_inputs":{"mm_hashes":["b"],"mm_placeholders":[{"offset":2,"length":4}]}`}, 2},
		{"/sglang.api.v1.SglangService/Generate", api, []string{flat, flat + `,"image_data":{"source":"a"}`, flat + `,"image_data":{"source":"b"}`, flat + `,"video_data":{"source":"c"}`,
			flat + `,"image_data":{"source":"a"},"audio_data":{"source":"b"}`, flat + `,"mm_hashes":{"source":"d"}`}, 0},
	} {
		different := map[string]string{}
		for i, fields := range tt.fields {
			msg := messageOf(t, tt.d, "{"+fields+"}")
			raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
			require.NoError(t, err)
			var q, again policy.Request
			require.NoError(t, builtin.Lookup(tt.method).Request(&q, policy.UsesPrompt, msg))
			require.NoError(t, builtin.Lookup(tt.method).Request(&again, policy.UsesPrompt, raw))
			require.Equal(t, q.Prompt, again.Prompt, fields)
			require.Equal(t, q.CacheSalt, again.CacheSalt, fields)
			key := fmt.Sprint(q.Prompt.Tokens, q.CacheSalt)
			require.Empty(t, different[key], fields)
			different[key] = fields
			require.Len(t, q.Prompt.Tokens, 11)
			require.Equal(t, 11, q.PromptTokens)
			if tt.shared > 0 {
				require.Equal(t, []uint32{1, 2, 9, 9}[:tt.shared], q.Prompt.Tokens[:tt.shared], fields)
				require.Empty(t, q.CacheSalt)
			}
			if i == 0 {
				require.Equal(t, []uint32{1, 2, 9, 9, 9, 9, 3, 4, 9, 9, 5}, q.Prompt.Tokens)
				require.Empty(t, q.CacheSalt)
			}
		}
	}
	// A second image later in the conversation leaves what was there before.
	one := `"mm_hashes":["a"],"mm_placeholders":[{"offset":2,"length":4}]`
	two := `"mm_hashes":["a","b"],"mm_placeholders":[{"offset":2,"length":4},{"offset":8,"length":2}]`
	var first, second policy.Request
	m := builtin.Lookup("/vllm.grpc.engine.VllmEngine/Generate")
	require.NoError(t, m.Request(&first, policy.UsesPrompt, messageOf(t, engine, "{"+tokenized+`,"mm_inputs":{`+one+"}}")))
	require.NoError(t, m.Request(&second, policy.UsesPrompt, messageOf(t, engine, "{"+tokenized+`,"mm_inputs":{`+two+"}}")))
	require.Equal(t, first.Prompt.Tokens[:8], second.Prompt.Tokens[:8])
}
