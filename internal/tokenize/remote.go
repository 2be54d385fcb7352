package tokenize

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/warmpath/warmpath/balancer/dialect"
)

// maxAnswer bounds an engine's answer: a million tokens of ten digits.
const maxAnswer = 16 << 20

// maxIdle is how long a connection that is not used stays open.
const maxIdle = 30 * time.Second

// remote asks an engine's HTTP endpoint, as vLLM and SGLang have it: a prompt or
// messages in, {"tokens": […]} out. SGLang's takes no messages.
type remote struct {
	url    string
	client *http.Client
	rest   rest
}

func newRemote(url string) *remote {
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     maxIdle,
	}
	return &remote{url: url, client: &http.Client{Transport: t}, rest: rest{now: time.Now}}
}

// Close closes the connections that are idle.
func (r *remote) Close() error {
	r.client.CloseIdleConnections()
	return nil
}

// question is the body of a request.
type question struct {
	Model               string            `json:"model,omitempty"`
	Prompt              *string           `json:"prompt,omitempty"`
	Messages            []message         `json:"messages,omitempty"`
	Tools               []json.RawMessage `json:"tools,omitempty"`
	AddGenerationPrompt *bool             `json:"add_generation_prompt,omitempty"`
	AddSpecialTokens    bool              `json:"add_special_tokens"`
}

// message is a turn as OpenAI's API has it.
type message struct {
	Role       string  `json:"role"`
	Content    *string `json:"content"`
	Name       string  `json:"name,omitempty"`
	ToolCalls  []call  `json:"tool_calls,omitempty"`
	ToolCallID string  `json:"tool_call_id,omitempty"`
	Reasoning  string  `json:"reasoning_content,omitempty"`
	Refusal    string  `json:"refusal,omitempty"`
}

type call struct {
	ID       string   `json:"id,omitempty"`
	Type     string   `json:"type"`
	Function function `json:"function"`
}

type function struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

func questionOf(in dialect.TokenizerInput) question {
	q := question{Model: in.Model, AddSpecialTokens: in.Special}
	if in.Chat == nil {
		q.Prompt = &in.Text
		return q
	}
	yes := true
	q.AddGenerationPrompt = &yes
	for _, t := range in.Chat.Tools {
		q.Tools = append(q.Tools, json.RawMessage(t))
	}
	for _, t := range in.Chat.Turns {
		q.Messages = append(q.Messages, messageOf(t))
	}
	return q
}

func messageOf(t dialect.Turn) message {
	m := message{Role: t.Role, Name: t.Name, ToolCallID: t.Answers, Reasoning: t.Reasoning, Refusal: t.Refusal}
	if t.Text != nil {
		text := strings.Join(t.Text, "\n")
		m.Content = &text
	}
	for _, c := range t.Calls {
		m.ToolCalls = append(m.ToolCalls, call{ID: c.ID, Type: "function", Function: function{c.Name, c.Arguments}})
	}
	return m
}

// Tokens implements [dialect.Tokenizer].
func (r *remote) Tokens(ctx context.Context, in dialect.TokenizerInput) ([]uint32, error) {
	if err := r.rest.may(); err != nil {
		return nil, err
	}
	body, err := json.Marshal(questionOf(in))
	if err != nil {
		return nil, fmt.Errorf("tokenize: the prompt as JSON: %w", err)
	}
	tokens, err := r.ask(ctx, body)
	var refused *refusal
	switch {
	case errors.As(err, &refused) && refused.status < 500, errors.Is(err, context.Canceled):
		// The prompt's fault, or the caller's: it is no evidence about the engine.
	default:
		r.rest.after(err)
	}
	if err != nil {
		return nil, fmt.Errorf("tokenize: %s: %w", r.url, err)
	}
	return tokens, nil
}

func (r *remote) ask(ctx context.Context, body []byte) ([]uint32, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := r.client.Do(req)
	if err != nil {
		return nil, unwrapURL(err)
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, err
	case res.StatusCode != http.StatusOK:
		return nil, &refusal{res.StatusCode}
	case len(answer) > maxAnswer:
		return nil, fmt.Errorf("the answer is longer than %d MiB", maxAnswer>>20)
	}
	return readAnswer(answer)
}

// unwrapURL takes away net/http's text about the URL, which the caller adds too.
func unwrapURL(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
}

// refusal is an answer other than 200. Its text is left out: it may quote the prompt.
type refusal struct{ status int }

func (r *refusal) Error() string {
	return fmt.Sprintf("HTTP status %d %s", r.status, http.StatusText(r.status))
}

// errAnswer means that the answer is not {"tokens": [ids]}.
var errAnswer = errors.New(`the answer is not like {"tokens": [1, 2, 3]}`)

func readAnswer(answer []byte) ([]uint32, error) {
	var a struct {
		Tokens []uint32 `json:"tokens"`
	}
	if err := json.Unmarshal(answer, &a); err != nil || len(a.Tokens) == 0 {
		return nil, errAnswer
	}
	return a.Tokens, nil
}
