// Package jinja writes chats by the Jinja templates that come with models, for the
// field chat_template of a channel's tokenizer.
//
// The rule. A template gives the text that Jinja2 gives in the settings of Hugging Face's transformers, or it is refused
// when it is opened, naming what is not supported: a sandbox in which nothing changes but namespaces, trim_blocks,
// lstrip_blocks, loop controls, the tag generation, and tojson, raise_exception and strftime_now as defined there. It
// gets messages, tools, add_generation_prompt and the special tokens. Several parts of text are joined by a line end, as
// vLLM does. A chat with tools is refused, see [ErrTools]; so is a walk over the members of a message, whose order is
// not known.
//
// Complexity. A template is interpreted: some tens of microseconds a turn.
//
// Guarantees. A template reads no files and ends: steps, memory, nesting and time are bounded, while it is parsed too.
// Any number of goroutines may use one.
//
// Source: https://huggingface.co/docs/transformers/chat_templating, and the code of Jinja2 3.1.
package jinja

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/tokenize"
)

func init() {
	tokenize.RegisterChatTemplate(func(path string) (tokenize.ChatTemplate, error) { return Open(path) })
}

// ErrTools means that a chat has tools or calls of them. Engines add members to them before the template sees them,
// each in its own way, so the tokens would be others from the first on. An engine's endpoint does it right.
var ErrTools = errors.New("jinja: the chat has tools: name an endpoint in tokenizer.from")

// A Template is a chat template.
type Template struct {
	source  string
	body    []statement
	special map[string]string // bos_token and the like
	now     func() time.Time
}

// settings is a tokenizer_config.json, as far as it matters.
type settings struct {
	ChatTemplate json.RawMessage `json:"chat_template"`
	specialTokens
}

// specialTokens are what a template may write; nil = it is not defined.
type specialTokens struct {
	Bos  *specialToken `json:"bos_token"`
	Eos  *specialToken `json:"eos_token"`
	Unk  *specialToken `json:"unk_token"`
	Sep  *specialToken `json:"sep_token"`
	Pad  *specialToken `json:"pad_token"`
	Cls  *specialToken `json:"cls_token"`
	Mask *specialToken `json:"mask_token"`
}

// byName returns those that are defined.
func (s specialTokens) byName() map[string]string {
	all := make(map[string]string)
	for name, t := range map[string]*specialToken{
		"bos_token": s.Bos, "eos_token": s.Eos, "unk_token": s.Unk, "sep_token": s.Sep, "pad_token": s.Pad, "cls_token": s.Cls,
		"mask_token": s.Mask,
	} {
		if t != nil {
			all[name] = string(*t)
		}
	}
	return all
}

// specialToken is a token: its text, or an object with it.
type specialToken string

// UnmarshalJSON implements [json.Unmarshaler].
func (s *specialToken) UnmarshalJSON(raw []byte) error {
	var object struct{ Content string }
	if len(raw) > 0 && raw[0] == '{' {
		err := json.Unmarshal(raw, &object)
		*s = specialToken(object.Content)
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
	return Parse(text, s.byName())
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

// Parse reads the text of a template, and writes a chat of each kind with it. special are the tokens that it may write.
func Parse(text string, special map[string]string) (*Template, error) {
	t, err := read(text, special)
	if err != nil {
		return nil, err
	}
	return t, t.prove()
}

// read reads a template without trying it.
func read(text string, special map[string]string) (*Template, error) {
	if len(text) > maxSource {
		return nil, fmt.Errorf("a template of more than %d MiB", maxSource>>20)
	}
	body, err := parse(text)
	if err != nil {
		return nil, err
	}
	return &Template{source: text, body: body, special: special, now: time.Now}, nil
}

// trials are chats of each kind: one turn, many turns, calls of tools, a turn without content.
var trials = []string{
	`{"messages": [{"role": "user", "content": "Hi"}]}`,
	`{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
		{"role": "assistant", "content": "Hello", "reasoning_content": "A greeting."}, {"role": "user", "content": "Again"}]}`,
	`{"messages": [{"role": "user", "content": "The weather?"}, {"role": "assistant", "content": null, "tool_calls":
		[{"type": "function", "id": "abcdefghi", "function": {"name": "weather", "arguments": {"city": "Paris", "days": 2}}}]},
		{"role": "tool", "tool_call_id": "abcdefghi", "name": "weather", "content": "Sun"}, {"role": "user", "content": "Thanks"}],
		"tools": [{"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": {"type": "object",
		"properties": {"city": {"type": "string", "description": "A city."}, "days": {"type": "integer"}}, "required": ["city"]}}}]}`,
	`{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": null}, {"role": "user", "content": "Hm"}]}`,
}

// prove writes the trials. A template may refuse some kinds of chats, but not all that are without tools, and none because
// of what is not supported.
func (t *Template) prove() error {
	var first error
	worked := false
	for i, raw := range trials {
		names, err := readJSON([]byte(raw))
		if err == nil {
			_, err = t.write(context.Background(), names.(*dict), dialSteps)
		}
		var own unsupported
		if errors.As(err, &own) || errors.Is(err, errPanic) || i == 0 && bounded(err) {
			return err
		}
		if first == nil && i < 2 {
			first = err
		}
		worked = worked || err == nil && i < 2
	}
	if worked {
		return nil
	}
	return first
}

// bounded reports whether an error is one of the bounds.
func bounded(err error) bool {
	return errors.Is(err, errSteps) || errors.Is(err, errBytes) || errors.Is(err, errDepth)
}

// Render implements [tokenize.ChatTemplate].
func (t *Template) Render(ctx context.Context, c requestkey.Chat) (string, error) {
	if len(c.Tools) > 0 {
		return "", ErrTools
	}
	messages := &list{depth: 2}
	for _, m := range c.Messages {
		if m["tool_calls"] != nil {
			return "", ErrTools
		}
		v, err := of(m, 0)
		if err != nil {
			return "", err
		}
		messages.items = append(messages.items, v)
	}
	names := &dict{}
	names.put("messages", messages)
	return t.write(ctx, names, maxSteps)
}

// raised is what a template says with raise_exception.
type raised string

func (r raised) Error() string { return "the template says: " + string(r) }

// errPanic means that this package has a fault.
var errPanic = errors.New("jinja: a fault of the template engine")

// write runs the template, for so many steps at most, with names beside those that each chat has.
func (t *Template) write(ctx context.Context, names *dict, steps int) (text string, err error) {
	defer func() {
		if r := recover(); r != nil {
			text, err = "", fmt.Errorf("%w: %v", errPanic, r)
		}
	}()
	s := &scope{}
	s.set("tools", nil)
	s.set("documents", nil)
	s.set("add_generation_prompt", true)
	s.set("strftime_now", &method{do: func(m *machine, _ value, g given) (value, error) {
		a, err := g.texts(1, 1)
		if err != nil {
			return nil, err
		}
		s, err := strftime(t.now(), a[0])
		return s, err
	}})
	for name, token := range t.special {
		s.set(name, token)
	}
	for i, name := range names.keys {
		s.set(name, names.values[i])
	}
	m := newMachine(ctx, steps)
	if err := m.run(t.body, s.inner()); err != nil {
		var own raised
		if errors.As(err, &own) && !strings.Contains(t.source, string(own)) {
			return "", raised("something that quotes the chat")
		}
		return "", err
	}
	return m.out.String(), nil
}
