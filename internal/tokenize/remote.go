package tokenize

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/internal/requestkey"
)

// maxAnswer bounds an engine's answer: a million tokens of ten digits.
const maxAnswer = 16 << 20

// ErrResting means that the engine failed just now and is not asked for a while, so that not every prompt waits for it
// in vain.
var ErrResting = errors.New("tokenize: it failed just now and is left alone for a while")

// pause is how long. When it ends one call tries, and the others after it if it succeeds.
const pause = time.Second

// maxIdle is how long a connection that is not used stays open.
const maxIdle = 30 * time.Second

// remote asks an engine's HTTP endpoint, as vLLM and SGLang have it: a prompt or
// messages in, {"tokens": […]} out. SGLang's takes no messages.
type remote struct {
	url    string
	client *http.Client
	now    func() time.Time
	until  atomic.Int64 // when the pause after a failure ends, in nanoseconds; 0 = there is none
}

func newRemote(url string) *remote {
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     maxIdle,
	}
	return &remote{url: url, client: &http.Client{Transport: t}, now: time.Now}
}

// Close closes the connections that are idle.
func (r *remote) Close() error {
	r.client.CloseIdleConnections()
	return nil
}

// Tokens implements [dialect.Tokenizer].
func (r *remote) Tokens(ctx context.Context, in dialect.TokenizerInput) ([]uint32, error) {
	return r.answer(ctx, in.Model, map[string]any{"prompt": in.Text, "add_special_tokens": in.Special})
}

// chatTokens returns the tokens of a chat, by messages as OpenAI's API has them, where no template writes it as text.
func (r *remote) chatTokens(ctx context.Context, model string, c requestkey.Chat) ([]uint32, error) {
	question := map[string]any{"messages": c.Messages, "add_special_tokens": false, "add_generation_prompt": true}
	if len(c.Tools) > 0 {
		question["tools"] = c.Tools
	}
	return r.answer(ctx, model, question)
}

// answer asks unless the engine has failed lately.
func (r *remote) answer(ctx context.Context, model string, question map[string]any) ([]uint32, error) {
	now := r.now().UnixNano()
	if until := r.until.Load(); now < until || until != 0 && !r.until.CompareAndSwap(until, now+int64(pause)) {
		return nil, ErrResting
	}
	if model != "" {
		question["model"] = model
	}
	body, err := json.Marshal(question)
	if err != nil {
		return nil, fmt.Errorf("tokenize: the prompt as JSON: %w", err)
	}
	tokens, refused, err := r.ask(ctx, body)
	if err == nil {
		r.until.Store(0)
		return tokens, nil
	}
	if !refused && !errors.Is(err, context.Canceled) { // else the prompt's fault, or the caller's
		r.until.Store(r.now().Add(pause).UnixNano())
	}
	return nil, fmt.Errorf("tokenize: %s: %w", r.url, err)
}

// ask sends one question. The engine refused it where the status is neither 200 nor an error of its own; the answer to
// that is left out: it may quote the prompt.
func (r *remote) ask(ctx context.Context, body []byte) (tokens []uint32, refused bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url, bytes.NewReader(body))
	if err != nil {
		return nil, false, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := r.client.Do(req)
	if err != nil {
		return nil, false, cmp.Or(errors.Unwrap(err), err) // the URL is added by the caller
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch status := res.StatusCode; {
	case err != nil:
		return nil, false, err
	case status != http.StatusOK:
		return nil, status < 500, fmt.Errorf("HTTP status %d %s", status, http.StatusText(status))
	case len(answer) > maxAnswer:
		return nil, false, fmt.Errorf("the answer is longer than %d MiB", maxAnswer>>20)
	}
	tokens, err = readAnswer(answer)
	return tokens, false, err
}

// errAnswer means that the answer is not {"tokens": [ids]}.
var errAnswer = errors.New(`the answer is not like {"tokens": [1, 2, 3]}`)

func readAnswer(answer []byte) ([]uint32, error) {
	var a struct{ Tokens []uint32 }
	if err := json.Unmarshal(answer, &a); err != nil || len(a.Tokens) == 0 {
		return nil, errAnswer
	}
	return a.Tokens, nil
}
