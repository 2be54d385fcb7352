package requestkey

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadChat(t *testing.T) {
	tools := `[{"type":"function","function":{"name":"f"}}]`
	messages := `[
		{"role":"system","content":"be brief"},
		{"role":"user","name":"ann","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]},
		{"role":"assistant","content":null,"reasoning":"hm","refusal":"no","tool_calls":[
			{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}},
			{"id":"c2","type":"function","function":{"name":"g","arguments":{}}}]},
		{"role":"tool","tool_call_id":"c1","content":"42"},
		{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}]`
	got, ok := ReadChat(string(renderChat([]byte(tools), []byte(messages))))
	require.True(t, ok)
	require.Equal(t, Chat{
		Tools: []string{`{"type":"function","function":{"name":"f"}}`},
		Turns: []Turn{
			{Role: "system", Text: []string{"be brief"}},
			{Role: "user", Name: "ann", Text: []string{"one", "two"}},
			{
				Role: "assistant", Reasoning: "hm", Refusal: "no",
				Calls: []ToolCall{{ID: "c1", Name: "f", Arguments: `{"x":1}`}, {ID: "c2", Name: "g", Arguments: "{}"}},
			},
			{Role: "tool", Answers: "c1", Text: []string{"42"}},
			{Role: "user", Media: true},
		},
	}, got)
}

func TestReadChatOfOddText(t *testing.T) {
	odd := "\xfb\xfc\xfd\xfe\xff\x00é"
	got, ok := ReadChat(string(appendTurn(appendTurn(nil, odd, ""), "user", odd)))
	require.True(t, ok)
	require.Equal(t, []Turn{{Role: odd, Text: []string{""}}, {Role: "user", Text: []string{odd}}}, got.Turns)
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
		require.NotEmpty(t, c.Turns)
		var plain []byte
		for _, turn := range c.Turns {
			if turn.Media || turn.Name != "" || turn.Answers != "" || turn.Reasoning != "" || turn.Refusal != "" || len(turn.Calls) > 0 || len(turn.Text) != 1 {
				return
			}
			plain = appendTurn(plain, turn.Role, turn.Text[0])
		}
		again, ok := ReadChat(string(plain))
		require.True(t, ok)
		require.Equal(t, c.Turns, again.Turns)
	})
}
