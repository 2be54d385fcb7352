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
// Guarantees. A prompt costs no more than prepare_timeout. If its tokens cannot be had, it is looked up by the tokens of
// the turns before, or else as text by blocks of bytes, logged once and counted; the turns of a conversation that began
// as text stay text for an hour, so that no failure moves it. Equal prompts at
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
	"sort"
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
	past      *past
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

// Tokenize returns the token ids of a request's text. It implements [router.Tokenizer]: with an error, the ids are those
// of the turns before the failure, with what stands for the rest behind them; without ids the prompt stays text.
func (p *Prompts) Tokenize(ctx context.Context, q *policy.Request) ([]uint32, error) {
	model, text := q.Model, q.Prompt.Text
	if p.past.began(model, text) {
		p.log(ErrBegun)
		return nil, ErrBegun
	}
	tokens, err := p.tokens(ctx, model, text)
	switch {
	case err == nil:
		p.past.add(model, text, time.Time{})
	case ctx.Err() != nil: // the call's own end
		tokens = nil
	case len(tokens) == 0 && !lasting(err):
		tokens = p.recall(ctx, model, text)
	}
	if err != nil {
		p.log(err)
	}
	return tokens, err
}

// lasting reports whether a prompt will fail again, here and in all clients.
func lasting(err error) bool {
	return errors.Is(err, ErrNotText) || errors.Is(err, ErrMedia) || errors.Is(err, ErrChat) ||
		errors.Is(err, ErrTemplate) && !errors.Is(err, context.DeadlineExceeded)
}

// recall returns the tokens of the prompt that this one goes on from, with what stands for the rest. Without one, this
// prompt is text, and so are those that go on from it.
func (p *Prompts) recall(ctx context.Context, model, text string) []uint32 {
	if length := p.past.before(model, text); length > 0 {
		if tokens, err := p.tokens(ctx, model, text[:length]); err == nil { // it is in the cache
			return standIn(tokens, text[length:])
		}
	}
	p.past.add(model, text, p.past.now().Add(textStays))
	return nil
}

// A reading is a prompt as the tokenizer takes it.
type reading struct {
	dialect.TokenizerInput
	chat *requestkey.Chat // for an endpoint that has the chat template
}

// read reads a prompt, and writes a chat by the template.
func (p *Prompts) read(ctx context.Context, model, text string) (reading, error) {
	r := reading{TokenizerInput: dialect.TokenizerInput{Model: model, Text: text, Special: p.special}}
	if !requestkey.IsChat(text) {
		if !utf8.ValidString(text) {
			return r, ErrNotText
		}
		return r, nil
	}
	c, ok := requestkey.ReadChat(text)
	_, takesChats := p.tokenizer.(*remote)
	r.Special = false
	switch {
	case !ok:
		return r, ErrNotText
	case c.Media:
		return r, ErrMedia
	case p.template != nil:
		ctx, cancel := context.WithTimeout(ctx, p.timeout)
		defer cancel()
		var err error
		if r.Text, err = p.template.Render(ctx, c); err != nil {
			return r, fmt.Errorf("%w: %w", ErrTemplate, err)
		}
	case !takesChats:
		return r, ErrChat
	default:
		r.chat = &c
	}
	return r, nil
}

// tokens returns the tokens of a prompt. Those of a chat that cannot be read are those of its last request before that
// could, with what stands for the rest.
func (p *Prompts) tokens(ctx context.Context, model, text string) ([]uint32, error) {
	end := len(text)
	r, unread := p.read(ctx, model, text)
	if unread != nil {
		if end = p.readable(ctx, model, text, unread); end == 0 {
			return nil, unread
		}
		r, _ = p.read(ctx, model, text[:end])
	}
	tokens, err := p.encode(ctx, r)
	switch {
	case unread == nil:
		return tokens, err
	case err != nil:
		return nil, err
	}
	return standIn(tokens, text[end:]), unread
}

// readable returns the end of the longest beginning of a chat that was a request, as an answer follows it, and that can
// be read. Requests that grew out of each other can be read up to some turn, so halving finds it. It depends on the chat
// alone, so that all clients find the same.
func (p *Prompts) readable(ctx context.Context, model, text string, err error) int {
	if !lasting(err) || !requestkey.IsChat(text) || errors.Is(err, ErrNotText) || errors.Is(err, ErrChat) {
		return 0
	}
	ends := requestkey.AnswersIn(text)
	return append([]int{0}, ends...)[sort.Search(len(ends), func(i int) bool {
		_, err := p.read(ctx, model, text[:ends[i]])
		return err != nil
	})]
}

// encode returns the tokens of a reading.
func (p *Prompts) encode(ctx context.Context, r reading) ([]uint32, error) {
	if r.chat == nil {
		return p.text(ctx, r.TokenizerInput)
	}
	return p.encoded(ctx, r.TokenizerInput, nil, func(ctx context.Context, _, _ int) ([]uint32, error) {
		return p.tokenizer.(*remote).chatTokens(ctx, r.Model, *r.chat)
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
	if len(tokens) == 0 && err != nil || !in.Special || len(before)+len(after) == 0 {
		return tokens, err
	}
	return slices.Concat(before, tokens, after), err
}

// encoded returns the tokens of a text: of each segment those that are remembered, or what encode returns. Without cut
// it is one segment. If encode fails for a segment behind others, something stands for it and what follows it.
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
				return unfinished(all, in.Text[from:]), err
			}
			defer func() { leave(err) }()
			tokens, known = p.cache.get(k) // others may have worked for it meanwhile
		}
		if !known {
			if tokens, err = encode(ctx, from, to); err != nil {
				return unfinished(all, in.Text[from:]), err
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
	for _, e := range []error{ErrChat, ErrMedia, ErrBegun, ErrNotText, ErrTemplate, context.DeadlineExceeded, context.Canceled} {
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
