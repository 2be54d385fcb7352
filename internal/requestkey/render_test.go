package requestkey

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadChat(t *testing.T) {
	tools := `[{"function":{"name":"f"},"type":"function"}]`
	messages := `[
		{"role":"system","content":"be brief"},
		{"role":"user","name":"ann","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]},
		{"role":"assistant","content":null,"reasoning":"hm","refusal":"no","tool_calls":[
			{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}},
			{"id":"c2","type":"function","function":{"name":"g","arguments":{}}}]},
		{"role":"tool","tool_call_id":"c1","content":"42"},
		{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}]`
	got, ok := ReadChat(string(renderChat(jsonValue{b: []byte(tools)}, jsonValue{}, jsonValue{}, jsonValue{b: []byte(messages)})))
	require.True(t, ok)
	require.Equal(t, Chat{
		Tools: []json.RawMessage{json.RawMessage(`{"function":{"name":"f"},"type":"function"}`)},
		Media: true,
		Messages: []map[string]any{
			{"role": "system", "content": "be brief"},
			{"role": "user", "name": "ann", "content": "one\ntwo"},
			{"role": "assistant", "content": nil, "reasoning_content": "hm", "refusal": "no", "tool_calls": []map[string]any{
				{"type": "function", "id": "c1", "function": map[string]string{"name": "f", "arguments": `{"x":1}`}},
				{"type": "function", "id": "c2", "function": map[string]string{"name": "g", "arguments": "{}"}},
			}},
			{"role": "tool", "tool_call_id": "c1", "content": "42"},
			{"role": "user", "content": nil},
		},
	}, got)
}

func TestReadChatOfOddText(t *testing.T) {
	odd := "\xfb\xfc\xfd\xfe\xff\x00é"
	got, ok := ReadChat(string(appendTurn(appendTurn(nil, odd, ""), "user", odd)))
	require.True(t, ok)
	require.Equal(t, []map[string]any{{"role": odd, "content": ""}, {"role": "user", "content": odd}}, got.Messages)
	for _, none := range []string{"", "plain", "\xfdbatch", "\xfe", "\xfetext", "\xffuser\xfezwhat", "\xffuser\xfea{}", "\xfeT{}"} {
		_, ok := ReadChat(none)
		require.False(t, ok, "%q", none)
	}
	require.False(t, IsChat("plain"))
	require.True(t, IsChat("\xffuser"))
}

// Whatever is read is read whole: rendering it again gives the same text.
func FuzzReadChat(f *testing.F) {
	f.Add("\xffuser\xfethello\xffassistant\xfeta")
	f.Add("\xfeT{}\xffuser\xfec f\xfea{}\xfeiid")
	f.Fuzz(func(t *testing.T, text string) {
		c, ok := ReadChat(text)
		if !ok {
			return
		}
		require.NotEmpty(t, c.Messages)
		var plain []byte
		for _, m := range c.Messages {
			content, ok := m["content"].(string)
			if c.Media || !ok || len(m) > 2 {
				return
			}
			plain = appendTurn(plain, m["role"].(string), content)
		}
		again, ok := ReadChat(string(plain))
		require.True(t, ok)
		require.Equal(t, c.Messages, again.Messages)
	})
}
