package tokenize

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/requestkey"
)

// Options are what a host sets beside the config.
type Options struct {
	Logger *slog.Logger // nil = slog's default
}

// Prompts is the [router.Tokenizer] of a Router: a Tokenizer with a chat template, a
// cache and a deadline. Safe for use by many goroutines.
type Prompts struct {
	tokenizer dialect.Tokenizer
	resumer   Resumer // tokenizer, if it is one
	template  ChatTemplate
	special   bool
	timeout   time.Duration
	cache     *cache
	flights   flights
	logger    *slog.Logger
	logged    sync.Map // kinds of failures that were logged
}

func newPrompts(t dialect.Tokenizer, c Config, o Options) *Prompts {
	p := &Prompts{
		tokenizer: t,
		special:   c.AddSpecialTokens,
		timeout:   time.Duration(c.Timeout),
		cache:     newCache(c.CacheBytes),
		logger:    o.Logger,
	}
	p.resumer, _ = t.(Resumer)
	if p.logger == nil {
		p.logger = slog.Default()
	}
	return p
}

// Close gives back what the tokenizer holds. No other method may be called then.
func (p *Prompts) Close() error { return closeAll(p.tokenizer, p.template) }

// Tokenize returns the token ids of a request's text. It implements
// [router.Tokenizer]: an error leaves the prompt as it is.
func (p *Prompts) Tokenize(ctx context.Context, q *policy.Request) ([]uint32, error) {
	tokens, err := p.tokens(ctx, q)
	if err != nil {
		p.log(err)
	}
	return tokens, err
}

func (p *Prompts) tokens(ctx context.Context, q *policy.Request) ([]uint32, error) {
	text := q.Prompt.Text
	chat := requestkey.IsChat(text)
	if p.resumer != nil && !chat {
		return p.resumed(ctx, text, p.special)
	}
	if !chat && !utf8.ValidString(text) {
		return nil, ErrNotText
	}
	k := keyOf(q.Model, text)
	if p.resumer == nil {
		if e := p.cache.get(k); len(e) > 0 {
			return e[0].tokens, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	return p.flights.do(ctx, k, func() ([]uint32, error) { return p.work(ctx, k, q.Model, text, chat) })
}

// work tokenizes a chat, or a text that no Resumer takes.
func (p *Prompts) work(ctx context.Context, k key, model, text string, chat bool) ([]uint32, error) {
	var tokens []uint32
	var err error
	if chat {
		tokens, err = p.chat(ctx, model, text)
	} else {
		tokens, err = p.tokenizer.Tokens(ctx, dialect.TokenizerInput{Model: model, Text: text, Special: p.special})
	}
	if err == nil && p.resumer == nil {
		p.cache.put(&entry{key: k, at: len(text), tokens: tokens})
	}
	return tokens, err
}

// chat tokenizes what the template makes of a chat, or the chat itself.
func (p *Prompts) chat(ctx context.Context, model, text string) ([]uint32, error) {
	c, ok := requestkey.ReadChat(text)
	if !ok {
		return nil, ErrNotText
	}
	for _, t := range c.Turns {
		if t.Media {
			return nil, ErrMedia
		}
	}
	if p.template == nil {
		if t, ok := p.tokenizer.(chatTokenizer); ok {
			return t.chatTokens(ctx, model, c)
		}
		return nil, ErrChat
	}
	text, err := p.template.Render(c)
	switch {
	case err != nil:
		return nil, fmt.Errorf("tokenize: the chat template: %w", err)
	case p.resumer != nil:
		return p.resumed(ctx, text, false)
	}
	return p.tokenizer.Tokens(ctx, dialect.TokenizerInput{Model: model, Text: text})
}

// keyOf is the key of a whole prompt, where nothing is taken up again.
func keyOf(model, text string) key {
	var h xxh3.Hasher
	_, _ = h.WriteString(model)
	_, _ = h.Write([]byte{0})
	_, _ = h.WriteString(text)
	return h.Sum128()
}

// log logs each kind of failure once.
func (p *Prompts) log(err error) {
	kind := "other"
	for _, e := range []error{ErrChat, ErrMedia, ErrNotText, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, e) {
			kind = e.Error()
		}
	}
	if kind == context.Canceled.Error() {
		return // the call's own end
	}
	if _, before := p.logged.LoadOrStore(kind, true); !before {
		p.logger.Warn("warmpath: prompts are routed by their text where their tokens cannot be had; this is logged once",
			"reason", strings.TrimPrefix(err.Error(), "tokenize: "))
	}
}
