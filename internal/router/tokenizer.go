package router

import (
	"context"
	"errors"
	"io"

	"github.com/warmpath/warmpath/balancer/policy"
)

// A Tokenizer turns the text of a prompt into token ids.
type Tokenizer interface {
	// Tokenize returns the token ids of q.Prompt.Text, which are not changed
	// afterwards. It is called from the goroutine of the call, concurrently for
	// different requests, once for each and only if the policy uses prompts; it bounds
	// its own time. An error is counted, and the prompt stays text.
	Tokenize(ctx context.Context, q *policy.Request) ([]uint32, error)
}

// TokenizeErrors returns how often the Tokenizer failed.
func (r *Router) TokenizeErrors() int64 { return r.textErrors.Load() }

// tokenize replaces the text of a prompt by its tokens, once for a request.
func (r *Router) tokenize(ctx context.Context, q *policy.Request) {
	if !r.tokenizes || q.State().Tokenized || q.Prompt.Text == "" || len(q.Prompt.Tokens) > 0 {
		return
	}
	q.State().Tokenized = true
	tokens, err := r.opts.Tokenizer.Tokenize(ctx, q)
	switch {
	case err != nil:
		r.textErrors.Add(1)
	case len(tokens) > 0:
		q.SetPrompt(policy.Prompt{Tokens: tokens})
	}
}

// closers closes what a Router was given.
type closers []io.Closer

func (c closers) Close() (err error) {
	for _, x := range c {
		err = errors.Join(err, x.Close())
	}
	return err
}

// closerOf returns what closes the policy and the tokenizer, nil where neither needs it.
func closerOf(o Options) io.Closer {
	var all closers
	for _, x := range []any{o.Policy, o.Plain, o.Shadow, o.Tokenizer} {
		if c, ok := x.(io.Closer); ok {
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all
}
