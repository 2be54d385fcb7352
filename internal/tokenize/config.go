package tokenize

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"time"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
)

// Defaults and bounds of [Config].
const (
	defaultTimeout = policy.Duration(100 * time.Millisecond)
	MaxTimeout     = time.Minute
)

// Config is the object under "tokenizer" in a channel's config. Exactly one of File,
// Tiktoken and URL is set.
type Config struct {
	// File is the path of a tokenizer.json.
	File string `json:"file,omitempty"`
	// Tiktoken is the name of one of tiktoken's encodings.
	Tiktoken string `json:"tiktoken,omitempty"`
	// URL is an engine's endpoint, such as http://host:8000/tokenize.
	URL string `json:"url,omitempty"`
	// ChatTemplate is the path of a Jinja template, or of a tokenizer_config.json
	// with one.
	ChatTemplate string `json:"chat_template,omitempty"`
	// AddSpecialTokens adds what the model expects around every prompt of text; a chat
	// template writes that itself.
	AddSpecialTokens bool `json:"add_special_tokens"`
	// Timeout bounds what a prompt costs; 0 = 100ms, at most 1m.
	Timeout policy.Duration `json:"timeout,omitempty"`
}

// DefaultConfig returns the config that a decoder starts from; it names no source.
func DefaultConfig() Config { return Config{AddSpecialTokens: true, Timeout: defaultTimeout} }

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

func (c *Config) validate() error {
	sources := slices.DeleteFunc([]string{c.File, c.Tiktoken, c.URL}, func(s string) bool { return s == "" })
	if len(sources) != 1 {
		return fmt.Errorf("file, tiktoken, url: %d are set; set exactly one", len(sources))
	}
	if c.URL != "" {
		u, err := url.Parse(c.URL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return fmt.Errorf("url: %q is not like http://host:8000/tokenize", c.URL)
		}
	}
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	if c.Timeout < 0 || c.Timeout > policy.Duration(MaxTimeout) {
		return fmt.Errorf("timeout: %v is not between 0s and %v", c.Timeout, MaxTimeout)
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

// Open opens what a config names. The caller closes what it gets, after its last
// call; a Router does so with the one in its options.
func Open(c Config, o Options) (*Prompts, error) {
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	p := &Prompts{
		special: c.AddSpecialTokens,
		timeout: time.Duration(c.Timeout),
		cache:   newCache(cmp.Or(o.CacheBytes, 64<<20)),
		logger:  cmp.Or(o.Logger, slog.Default()),
	}
	var err error
	switch {
	case c.URL != "":
		p.tokenizer = newRemote(c.URL)
	case c.Tiktoken != "":
		p.tokenizer, err = opened("tiktoken", c.Tiktoken, dialect.LookupTokenizer("tiktoken"))
	default:
		p.tokenizer, err = opened("file", c.File, dialect.LookupTokenizer("file"))
	}
	if err == nil && c.ChatTemplate != "" {
		p.template, err = opened("chat_template", c.ChatTemplate, chatTemplates)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("tokenizer.%w", err), p.Close())
	}
	return p, nil
}
