package tokenize

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseConfig(t *testing.T) {
	for _, none := range []string{"", "null"} {
		c, err := ParseConfig(json.RawMessage(none))
		require.NoError(t, err)
		require.Nil(t, c)
		require.NoError(t, Check(json.RawMessage(none)))
	}
	c, err := ParseConfig(json.RawMessage(`{"from":"http://h:1/tokenize","add_special_tokens":false}`))
	require.NoError(t, err)
	require.Equal(t, Config{From: "http://h:1/tokenize"}, *c)
	c, err = ParseConfig(json.RawMessage(`{"from":"https://h/x"}`))
	require.NoError(t, err)
	want := DefaultConfig()
	want.From = "https://h/x"
	require.Equal(t, want, *c)
}

func TestBadConfigs(t *testing.T) {
	for raw, want := range map[string]string{
		`{}`:                                 "tokenizer: from: it is not set",
		`{"file":"a","from":"http://h"}`:     `unknown field "file"`,
		`{"from":"ftp://h"}`:                 `tokenizer: from: "ftp://h" is not like`,
		`{"from":"http:///x"}`:               "from:",
		`{"from":"http://h","timeout":"1s"}`: `tokenizer: unknown field "timeout"`,
		`{"uri":"http://h"}`:                 `tokenizer: unknown field "uri"`,
		`[]`:                                 "tokenizer: the config is a list",
	} {
		require.ErrorContains(t, Check(json.RawMessage(raw)), want, "%s", raw)
	}
}

func TestMissingImportIsNamed(t *testing.T) {
	for _, from := range []string{"x", "tiktoken:x"} {
		require.EqualError(t, Check(json.RawMessage(`{"from":"`+from+`"}`)),
			`tokenizer.from: this program cannot read it; it must import _ "github.com/warmpath/warmpath/tokenizers"`)
	}
	require.EqualError(t, Check(json.RawMessage(`{"from":"http://h/x","chat_template":"x"}`)),
		`tokenizer.chat_template: this program cannot read it; it must import _ "github.com/warmpath/warmpath/tokenizers"`)
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"from":"http://h:1/tokenize","chat_template":"t"}`))
	f.Add([]byte(`{"from":"a"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := ParseConfig(raw)
		if err != nil || c == nil {
			return
		}
		again, err := json.Marshal(c)
		require.NoError(t, err)
		same, err := ParseConfig(again)
		require.NoError(t, err)
		require.Equal(t, c, same)
	})
}
