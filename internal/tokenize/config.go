package tokenize

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/strict"
)

// Config is the object under "tokenizer" in a channel's config.
type Config struct {
	// From is the path of a tokenizer.json, an engine's endpoint such as http://host:8000/tokenize, or one of tiktoken's
	// encodings such as tiktoken:cl100k_base.
	From string `json:"from"`
	// ChatTemplate is the path of a Jinja template, or of a tokenizer_config.json
	// with one.
	ChatTemplate string `json:"chat_template,omitempty"`
	// AddSpecialTokens adds what the model expects around every prompt of text; a chat
	// template writes that itself.
	AddSpecialTokens bool `json:"add_special_tokens"`
}

// DefaultConfig returns the config that a decoder starts from; it names no source.
func DefaultConfig() Config { return Config{AddSpecialTokens: true} }

// ParseConfig reads the config strictly and checks it; nil where there is none. The
// error names the field.
func ParseConfig(raw json.RawMessage) (*Config, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	c := DefaultConfig()
	err := policy.Decode(raw, &c)
	if err == nil {
		err = c.validate()
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	return &c, nil
}

func (c Config) validate() error {
	u, err := url.Parse(c.From)
	web := err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
	return cmp.Or(
		strict.Want(c.From != "", "from: it is not set"),
		strict.Want(web || !strings.Contains(c.From, "://"), "from: %q is not like http://host:8000/tokenize", c.From),
	)
}

// Check reads the config and opens what it names, to find out whether that works. No
// connection is made.
func Check(raw json.RawMessage) error {
	c, err := ParseConfig(raw)
	if c == nil || err != nil {
		return err
	}
	p, err := Open(*c, Options{})
	if err != nil {
		return err
	}
	return p.Close()
}

// NewRouter builds the Router of a config, with its tokenizer where it has one. now is the clock; nil = the real one.
func NewRouter(c *policy.Config, log *slog.Logger, now func() time.Time) (*router.Router, error) {
	own, err := ParseConfig(c.Tokenizer)
	var t *Prompts
	if own != nil {
		t, err = Open(*own, Options{Timeout: time.Duration(c.PrepareTimeout), Logger: log})
	}
	if err != nil {
		return nil, err
	}
	r, err := router.FromConfig(c, func(o *router.Options) {
		if o.Now = now; t != nil {
			o.Tokenizer = t
		}
	})
	if err != nil && t != nil {
		err = errors.Join(err, t.Close())
	}
	return r, err
}

// Open opens what a config names. The caller closes what it gets, after its last
// call; a Router does so with the one in its options.
func Open(c Config, o Options) (*Prompts, error) {
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	p := &Prompts{
		special: c.AddSpecialTokens,
		timeout: o.Timeout,
		cache:   newCache(cmp.Or(o.CacheBytes, 64<<20) / 16 * 15),
		past:    newPast(cmp.Or(o.CacheBytes, 64<<20)/16, time.Now),
		logger:  cmp.Or(o.Logger, slog.Default()),
	}
	var err error
	if encoding, ok := strings.CutPrefix(c.From, "tiktoken:"); ok {
		p.tokenizer, err = opened("from", encoding, dialect.LookupTokenizer("tiktoken"))
	} else if strings.Contains(c.From, "://") {
		p.tokenizer = newRemote(c.From)
	} else {
		p.tokenizer, err = opened("from", c.From, dialect.LookupTokenizer("file"))
	}
	if err == nil && c.ChatTemplate != "" {
		p.template, err = opened("chat_template", c.ChatTemplate, chatTemplates)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("tokenizer.%w", err), p.Close())
	}
	return p, nil
}

// A Segmenter is a Tokenizer of text that can cut it in segments: the tokens of a text are those of its segments, one
// after the other. The tokens of a segment depend on its own text, and on whether it is the first or the last.
type Segmenter interface {
	dialect.Tokenizer
	// Cut returns where the segment ends that begins at from: 0, or the end of another. It is the same in all texts that
	// are equal up to some bytes behind it.
	Cut(text string, from int) int
	// Encode appends the tokens of the segment text[from:to] to dst.
	Encode(ctx context.Context, dst []uint32, text string, from, to int) ([]uint32, error)
	// Around returns the tokens that stand before and behind every prompt.
	Around() (before, after []uint32)
}

// A ChatTemplate writes a chat as the text that a model was trained on.
type ChatTemplate interface {
	// Render is called from many goroutines. It ends soon after the context does.
	Render(ctx context.Context, c requestkey.Chat) (string, error)
}

// Errors of prompts that stay text.
var (
	// ErrChat: the prompt is a chat, and the tokenizer takes text only.
	ErrChat = errors.New("tokenize: the prompt is a chat: set tokenizer.chat_template, or in tokenizer.from an endpoint that takes messages")
	// ErrNotText: the prompt is several prompts, or not UTF-8.
	ErrNotText = errors.New("tokenize: the prompt is a batch, or not UTF-8")
	// ErrBegun: the conversation has begun as text, since its tokens could not be had then.
	ErrBegun = errors.New("tokenize: the conversation has begun without tokens")
	// ErrTemplate: the chat template fails for this chat.
	ErrTemplate = errors.New("tokenize: the chat template fails")
	// ErrMedia: the prompt has images or the like, whose tokens depend on the model.
	ErrMedia = errors.New("tokenize: the prompt has more than text")
)

// chatTemplates is how a chat_template is opened, nil = no package that does is linked.
var chatTemplates func(path string) (ChatTemplate, error)

// RegisterChatTemplate registers how a chat_template is opened. It is called from init.
func RegisterChatTemplate(open func(path string) (ChatTemplate, error)) { chatTemplates = open }

// opened opens the value of a field. The error names the field, and the import that is missing.
func opened[T any](field, value string, open func(string) (T, error)) (T, error) {
	var none T
	if open == nil {
		return none, fmt.Errorf("%s: this program cannot read it; it must import _ %q", field,
			"github.com/warmpath/warmpath/tokenizers")
	}
	t, err := open(value)
	if err != nil {
		return none, fmt.Errorf("%s: %w", field, err)
	}
	return t, nil
}
