package router

import (
	"context"
	"sync/atomic"

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

// A tokenizing calls the Tokenizer of a Router; one without does nothing.
type tokenizing struct {
	tokenizer Tokenizer
	errors    atomic.Int64
}

// run replaces the text of a prompt by its tokens, once for a request.
func (t *tokenizing) run(ctx context.Context, q *policy.Request) {
	if t.tokenizer == nil || q.State().Tokenized || q.Prompt.Text == "" || len(q.Prompt.Tokens) > 0 {
		return
	}
	q.State().Tokenized = true
	tokens, err := t.tokenizer.Tokenize(ctx, q)
	switch {
	case err != nil:
		t.errors.Add(1)
	case len(tokens) > 0:
		q.SetPrompt(policy.Prompt{Tokens: tokens})
	}
}

// TokenizeErrors returns how often the Tokenizer failed.
func (r *Router) TokenizeErrors() int64 { return r.tokens.errors.Load() }
