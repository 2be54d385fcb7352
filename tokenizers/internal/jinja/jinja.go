// Package jinja writes chats by the Jinja templates that come with models, for the
// field chat_template of a channel's tokenizer.
//
// The rule. A template gets messages, tools, add_generation_prompt, bos_token,
// eos_token, raise_exception and strftime_now, as Hugging Face's transformers give
// them, with trim_blocks and lstrip_blocks. Several parts of text are joined by a line
// end, as vLLM does. A chat with tools is refused, see [ErrTools].
//
// Complexity. The program is 4 MB larger. A template is interpreted: some tens of
// microseconds a turn.
//
// Guarantees. A template reads no files. Any number of goroutines may use one.
//
// Source: https://huggingface.co/docs/transformers/chat_templating.
package jinja

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nikolalohinski/gonja/v2"
	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"

	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/tokenize"
)

func init() {
	tokenize.RegisterChatTemplate(func(path string) (tokenize.ChatTemplate, error) { return Open(path) })
}

// ErrTools means that a chat has tools or calls of them. Templates write these as JSON,
// and the template engine orders and spaces that in another way than Python does, so the
// tokens would be others from the first on. An engine's endpoint does it right.
var ErrTools = errors.New("jinja: the chat has tools: name an endpoint in tokenizer.from")

// A Template is a chat template.
type Template struct {
	template *exec.Template
	bos, eos string
	now      func() time.Time
}

// settings is a tokenizer_config.json, as far as it matters.
type settings struct {
	ChatTemplate json.RawMessage `json:"chat_template"`
	Bos          special         `json:"bos_token"`
	Eos          special         `json:"eos_token"`
}

// special is a token: its text, or an object with it.
type special string

// UnmarshalJSON implements [json.Unmarshaler].
func (s *special) UnmarshalJSON(raw []byte) error {
	var object struct{ Content string }
	if len(raw) > 0 && raw[0] == '{' {
		err := json.Unmarshal(raw, &object)
		*s = special(object.Content)
		return err
	}
	return json.Unmarshal(raw, (*string)(s))
}

// Open reads a template, or a tokenizer_config.json with one. The tokens around a chat
// are taken from that, or from the one beside a template if there is one.
func Open(path string) (*Template, error) {
	raw, err := os.ReadFile(path)
	config, alone := raw, filepath.Ext(path) != ".json"
	if err == nil && alone {
		config, err = os.ReadFile(filepath.Join(filepath.Dir(path), "tokenizer_config.json"))
		if errors.Is(err, os.ErrNotExist) {
			config, err = []byte("{}"), nil
		}
	}
	var s settings
	if err == nil {
		err = json.Unmarshal(config, &s)
	}
	text := string(raw)
	if err == nil && !alone {
		text, err = s.template()
	}
	if err != nil {
		return nil, err
	}
	return Parse(text, string(s.Bos), string(s.Eos))
}

// template returns the template, or of several the default.
func (s *settings) template() (text string, err error) {
	var named []struct{ Name, Template string }
	if json.Unmarshal(s.ChatTemplate, &text) != nil && json.Unmarshal(s.ChatTemplate, &named) != nil {
		return "", errors.New("its chat_template is neither a text nor a list of them")
	}
	for _, n := range named {
		if n.Name == "default" {
			text = n.Template
		}
	}
	if text == "" {
		return "", errors.New("it has no chat_template")
	}
	return text, nil
}

// Parse reads the text of a template; bos and eos are the tokens that it may write.
func Parse(text, bos, eos string) (*Template, error) {
	const name = "chat_template"
	c := config.New()
	c.TrimBlocks, c.LeftStripBlocks = true, true
	loader, err := loaders.NewShiftedLoader(name, bytes.NewReader([]byte(text)), loaders.MustNewMemoryLoader(nil))
	if err != nil {
		return nil, err
	}
	t, err := exec.NewTemplate(name, c, loader, gonja.DefaultEnvironment)
	if err != nil {
		return nil, err
	}
	return &Template{template: t, bos: bos, eos: eos, now: time.Now}, nil
}

// Render implements [tokenize.ChatTemplate].
func (t *Template) Render(c requestkey.Chat) (string, error) {
	if len(c.Tools) > 0 {
		return "", ErrTools
	}
	messages := make([]any, len(c.Messages))
	for i, m := range c.Messages {
		if m["tool_calls"] != nil {
			return "", ErrTools
		}
		messages[i] = m
	}
	return t.template.ExecuteToString(exec.NewContext(map[string]any{
		"messages": messages, "tools": nil, "add_generation_prompt": true, "bos_token": t.bos, "eos_token": t.eos,
		"raise_exception": func(why string) (string, error) { return "", errors.New(why) },
		"strftime_now":    func(format string) string { return strftime(t.now(), format) },
	}))
}

// strftime has the formats that templates use.
func strftime(now time.Time, format string) string {
	return strings.NewReplacer(
		"%Y", now.Format("2006"), "%m", now.Format("01"), "%d", now.Format("02"), "%B", now.Format("January"), "%b", now.Format("Jan"),
		"%A", now.Format("Monday"), "%H", now.Format("15"), "%M", now.Format("04"), "%S", now.Format("05"), "%%", "%",
	).Replace(format)
}
