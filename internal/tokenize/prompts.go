// Package tokenize gives prompts of text their token ids, so that a policy sees the
// blocks that an engine caches and reports, and a prompt's true length.
//
//	import _ "github.com/warmpath/warmpath/tokenizers"
//
//	client.WithConfig(`{"tokenizer": {"from": "/models/llama-3/tokenizer.json"}}`)
//
// The rule. Before a policy prepares, the Router asks the Tokenizer of its channel,
// in the goroutine of the call and under no lock. Token ids that are in a request
// are used as they are. Chat turns become text by the model's chat template, or are
// sent to an engine that has it.
//
// Sources, one of which the config names: a file tokenizer.json, one of tiktoken's
// encodings, an engine's HTTP endpoint. The first two and chat templates are there only
// if the program imports package tokenizers, so that others do not link what they need.
//
// Guarantees. A prompt costs no more than prepare_timeout. Where its tokens cannot be had,
// it is routed as text by blocks of bytes, logged once and counted. Equal prompts at
// the same time are encoded once; what was encoded is remembered in 64 MiB of
// memory, by hashes, never as text. Of a text that a tokenizer can cut in segments
// ([Segmenter]) only the segments that were not seen before are encoded.
package tokenize

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
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
	Timeout    time.Duration // bounds what a prompt costs: prepare_timeout of the channel; required
	Logger     *slog.Logger  // nil = slog's default
	CacheBytes int64         // memory of the tokens that are remembered; 0 = 64 MiB, -1 = none
}

// Prompts is the [router.Tokenizer] of a Router: a Tokenizer with a chat template, a
// cache and a deadline. Safe for use by many goroutines.
type Prompts struct {
	tokenizer dialect.Tokenizer
	template  ChatTemplate
	special   bool
	timeout   time.Duration
	cache     *cache
	logger    *slog.Logger
	logged    sync.Map // kinds of failures that were logged
}

// Close gives back what the tokenizer holds. No other method may be called then.
func (p *Prompts) Close() error {
	if c, ok := p.tokenizer.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

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
	in := dialect.TokenizerInput{Model: q.Model, Text: q.Prompt.Text, Special: p.special}
	if !requestkey.IsChat(in.Text) {
		if !utf8.ValidString(in.Text) {
			return nil, ErrNotText
		}
		return p.text(ctx, in)
	}
	c, ok := requestkey.ReadChat(in.Text)
	engine, takesChats := p.tokenizer.(*remote)
	switch {
	case !ok:
		return nil, ErrNotText
	case c.Media:
		return nil, ErrMedia
	case p.template != nil:
		ctx, cancel := context.WithTimeout(ctx, p.timeout)
		defer cancel()
		text, err := p.template.Render(ctx, c)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrTemplate, err)
		}
		in.Text, in.Special = text, false
		return p.text(ctx, in)
	case !takesChats:
		return nil, ErrChat
	}
	in.Special = false
	return p.encoded(ctx, in, nil, func(ctx context.Context, _, _ int) ([]uint32, error) {
		return engine.chatTokens(ctx, in.Model, c)
	})
}

// text returns the tokens of a text.
func (p *Prompts) text(ctx context.Context, in dialect.TokenizerInput) ([]uint32, error) {
	s, cuts := p.tokenizer.(Segmenter)
	if !cuts {
		return p.encoded(ctx, in, nil, func(ctx context.Context, _, _ int) ([]uint32, error) {
			return p.tokenizer.Tokens(ctx, in)
		})
	}
	tokens, err := p.encoded(ctx, in, s.Cut, func(ctx context.Context, from, to int) ([]uint32, error) {
		return s.Encode(ctx, make([]uint32, 0, (to-from)/3), in.Text, from, to)
	})
	before, after := s.Around()
	if err != nil || !in.Special || len(before)+len(after) == 0 {
		return tokens, err
	}
	return slices.Concat(before, tokens, after), nil
}

// encoded returns the tokens of a text: of each segment those that are remembered, or what encode returns. Without cut
// it is one segment.
func (p *Prompts) encoded(
	ctx context.Context, in dialect.TokenizerInput, cut func(text string, from int) int,
	encode func(ctx context.Context, from, to int) ([]uint32, error),
) (tokens []uint32, err error) {
	var all [][]uint32
	var leave func(error) // once it works for the text
	for from, to := 0, 0; len(all) == 0 || from < len(in.Text); from = to {
		if to = len(in.Text); cut != nil {
			to = cut(in.Text, from)
		}
		k := keyOf(in, from, to)
		tokens, known := p.cache.get(k)
		if !known && leave == nil {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, p.timeout)
			defer cancel()
			if leave, err = p.cache.enter(ctx, keyOf(in, 0, len(in.Text))); err != nil {
				return nil, err
			}
			defer func() { leave(err) }()
			tokens, known = p.cache.get(k) // others may have worked for it meanwhile
		}
		if !known {
			if tokens, err = encode(ctx, from, to); err != nil {
				return nil, err
			}
			tokens = slices.Clone(tokens)
			p.cache.put(k, tokens)
		}
		all = append(all, tokens)
	}
	if len(all) == 1 {
		return all[0], nil
	}
	return slices.Concat(all...), nil
}

// keyOf returns the key of a segment of a text.
func keyOf(in dialect.TokenizerInput, from, to int) key {
	var place byte
	for i, is := range []bool{in.Special, from == 0, to == len(in.Text)} {
		if is {
			place |= 1 << i
		}
	}
	var h xxh3.Hasher
	_, _ = h.WriteString(in.Model)
	_, _ = h.Write([]byte{0, place})
	_, _ = h.WriteString(in.Text[from:to])
	return h.Sum128()
}

// log logs each kind of failure once.
func (p *Prompts) log(err error) {
	kind := "other"
	for _, e := range []error{ErrChat, ErrMedia, ErrNotText, ErrTemplate, context.DeadlineExceeded, context.Canceled} {
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
