package tokenize

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
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
	if c.From == "" {
		return errors.New("from: it is not set")
	}
	if u, err := url.Parse(c.From); strings.Contains(c.From, "://") &&
		(err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		return fmt.Errorf("from: %q is not like http://host:8000/tokenize", c.From)
	}
	return nil
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
		cache:   newCache(cmp.Or(o.CacheBytes, 64<<20)),
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
