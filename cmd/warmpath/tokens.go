package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/tokenize"
	_ "github.com/warmpath/warmpath/tokenizers"
)

// shownTokens is how many tokens explain prints.
const shownTokens = 16

// tokens is the tokenizer that a config names; it keeps what it found for the one
// prompt that is asked about.
type tokens struct {
	*tokenize.Prompts
	first []uint32
	err   error
}

// openTokens opens the tokenizer of a config, nil where there is none.
func openTokens(config *policy.Config) (*tokens, error) {
	c, err := tokenize.ParseConfig(config.Tokenizer)
	if c == nil || err != nil {
		return nil, err
	}
	p, err := tokenize.Open(*c, tokenize.Options{
		Timeout: time.Duration(config.PrepareTimeout), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	return &tokens{Prompts: p}, nil
}

// Tokenize implements [router.Tokenizer].
func (t *tokens) Tokenize(ctx context.Context, q *policy.Request) (all []uint32, err error) {
	all, t.err = t.Prompts.Tokenize(ctx, q)
	t.first = all[:min(len(all), shownTokens)]
	return all, t.err
}
