package jinja

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/tokenize"
)

// A template like those that come with models.
const template = `{{- bos_token }}
{% for message in messages %}
    {% if message.role == 'user' and not loop.first and loop.previtem.role == 'user' %}
        {{- raise_exception('two users in a row') }}
    {% endif %}
    {%- set content = message['content'] | trim if message['content'] is string else '' %}
    {{- '<|' + message['role'] + '|>' + content }}
    {{- eos_token }}
{% endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}`

var tokens = map[string]string{"bos_token": "<s>", "eos_token": "</s>"}

var chat = requestkey.Chat{
	Messages: []map[string]any{
		{"role": "user", "content": " one\ntwo "},
		{"role": "assistant", "content": "three", "reasoning_content": "hm"},
	},
}

const want = "<s>\n<|user|>one\ntwo</s>\n<|assistant|>three</s>\n<|assistant|>"

func TestRender(t *testing.T) {
	tpl, err := Parse(template, tokens)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			got, err := tpl.Render(context.Background(), chat)
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
	wg.Wait()
	_, err = tpl.Render(context.Background(), requestkey.Chat{Messages: []map[string]any{{"role": "user"}, {"role": "user"}}})
	require.ErrorContains(t, err, "two users in a row")
	_, err = tpl.Render(context.Background(), requestkey.Chat{Tools: []json.RawMessage{json.RawMessage("{}")}, Messages: chat.Messages})
	require.ErrorIs(t, err, ErrTools)
	_, err = tpl.Render(context.Background(), requestkey.Chat{Messages: []map[string]any{{"role": "assistant", "tool_calls": []map[string]any{{}}}}})
	require.ErrorIs(t, err, ErrTools)
}

func TestToday(t *testing.T) {
	tpl, err := Parse(`{{ strftime_now("%d %b %Y") }}`, nil)
	require.NoError(t, err)
	tpl.now = func() time.Time { return time.Date(2026, 7, 4, 0, 0, 0, 0, time.UTC) }
	got, err := tpl.Render(context.Background(), chat)
	require.NoError(t, err)
	require.Equal(t, "04 Jul 2026", got)
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	render := func(path string) string {
		tpl, err := Open(path)
		require.NoError(t, err)
		got, err := tpl.Render(context.Background(), chat)
		require.NoError(t, err)
		return got
	}
	alone := write("chat_template.jinja", "{{ bos_token }}x")
	require.Equal(t, "x", render(alone))
	settings := write("tokenizer_config.json", `{"bos_token":{"content":"<s>"},"eos_token":"</s>","chat_template":"{{ bos_token }}y{{ eos_token }}"}`)
	require.Equal(t, "<s>x", render(alone))
	require.Equal(t, "<s>y</s>", render(settings))
	require.Equal(t, "z", render(write("named.json", `{"bos_token":null,"chat_template":[{"name":"tool_use","template":"t"},{"name":"default","template":"z"}]}`)))
	for text, want := range map[string]string{
		`{}`: "neither a text nor a list", `{"chat_template":""}`: "it has no chat_template", `[`: "JSON", `{"chat_template":"{% if %}"}`: "",
	} {
		_, err := Open(write("bad.json", text))
		require.ErrorContains(t, err, want, text)
	}
	c := tokenize.DefaultConfig()
	c.From, c.ChatTemplate = "http://127.0.0.1:1/tokenize", filepath.Join(dir, "none")
	_, err := tokenize.Open(c, tokenize.Options{})
	require.ErrorContains(t, err, "tokenizer.chat_template: open ")
}

func TestTemplateReadsNoFiles(t *testing.T) {
	tpl, err := Parse(`{% include "/etc/hostname" %}`, nil)
	if err == nil {
		_, err = tpl.Render(context.Background(), chat)
	}
	require.Error(t, err)
}

func BenchmarkRender(b *testing.B) {
	tpl, err := Parse(template, tokens)
	require.NoError(b, err)
	long := requestkey.Chat{}
	for range 20 {
		long.Messages = append(long.Messages, chat.Messages...)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tpl.Render(context.Background(), long); err != nil {
			b.Fatal(err)
		}
	}
}
