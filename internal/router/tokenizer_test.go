package router

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

// words counts the calls of a Router's Tokenizer: one token a byte.
type words struct {
	calls, closed int
	err           error
}

func (w *words) Tokenize(_ context.Context, q *policy.Request) ([]uint32, error) {
	w.calls++
	if w.err != nil {
		return nil, w.err
	}
	var tokens []uint32
	for _, b := range []byte(q.Prompt.Text) {
		tokens = append(tokens, uint32(b))
	}
	return tokens, nil
}

func (w *words) Close() error {
	w.closed++
	return nil
}

// reader is a policy that keeps the prompts it saw.
type reader struct {
	uses policy.Uses
	saw  []policy.Prompt
}

func (p *reader) policy() policy.Policy {
	return policy.Policy{Uses: p.uses, Prepare: p.prepare, Choose: p.choose}
}
func (p *reader) prepare(_ context.Context, q *policy.Request, _ policy.View) error {
	p.saw = append(p.saw, q.Prompt)
	return nil
}
func (p *reader) choose(_ *policy.Request, v policy.View) policy.Decision {
	return policy.To(v.Connected()[0], policy.ReasonLeastLoaded)
}

func withWords(t *testing.T, w *words, uses policy.Uses) (*Router, *reader) {
	t.Helper()
	p := &reader{uses: uses}
	r, err := NewRouter(Options{Policy: p.policy(), Tokenizer: w})
	require.NoError(t, err)
	r.Fleet.Set([]Member{{Attributes: policy.Attributes{ID: "a"}}, {Attributes: policy.Attributes{ID: "b"}}})
	r.Fleet.SetConnected("a", true)
	return r, p
}

func TestPromptsBecomeTokens(t *testing.T) {
	w := &words{}
	r, p := withWords(t, w, policy.UsesPrompt)
	q := &policy.Request{}
	q.SetPrompt(policy.Prompt{Text: "hello"})
	require.Equal(t, 2, q.PromptTokens)
	var b Reservation
	require.NoError(t, r.Reserve(context.Background(), q, &b, How{NoWait: true}))
	require.Equal(t, []policy.Prompt{{Tokens: []uint32{'h', 'e', 'l', 'l', 'o'}}}, p.saw)
	require.Equal(t, 5, q.PromptTokens, "the load reserved is the prompt's own")
	b.Release()

	// A later attempt, after a change of the fleet, and without the prompt.
	DropPrompt(q)
	NextAttempt(q, b.Decision.Replica)
	r.Fleet.Set([]Member{{Attributes: policy.Attributes{ID: "a"}}})
	require.NoError(t, r.Reserve(context.Background(), q, &b, How{NoWait: true}))
	b.Release()
	require.Equal(t, 1, w.calls)
	require.Equal(t, 5, q.PromptTokens)

	// Tokens of the request are used unchanged.
	q = &policy.Request{}
	q.SetPrompt(policy.Prompt{Tokens: []uint32{7}})
	require.NoError(t, r.Reserve(context.Background(), q, &b, How{NoWait: true}))
	b.Release()
	require.Equal(t, 1, w.calls)
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	require.Equal(t, 1, w.closed)
}

func TestTokenizerThatFails(t *testing.T) {
	w := &words{err: errors.New("no")}
	r, p := withWords(t, w, policy.UsesPrompt)
	q := &policy.Request{}
	q.SetPrompt(policy.Prompt{Text: "hello"})
	var b Reservation
	for range 2 { // attempts
		require.NoError(t, r.Reserve(context.Background(), q, &b, How{NoWait: true}))
		b.Release()
		NextAttempt(q, nil)
		r.Fleet.Set([]Member{{Attributes: policy.Attributes{ID: "a"}}})
	}
	require.Equal(t, []policy.Prompt{{Text: "hello"}, {Text: "hello"}}, p.saw)
	require.Equal(t, 1, w.calls, "once for a request")
	require.EqualValues(t, 1, r.Counts.TokenizeErrors.Load())
	require.Zero(t, r.Counts.PrepareErrors.Load())

	// Another Router may have another tokenizer.
	better := &words{}
	other, _ := withWords(t, better, policy.UsesPrompt)
	require.NoError(t, other.Reserve(context.Background(), q, &b, How{NoWait: true}))
	b.Release()
	require.Equal(t, 5, q.PromptTokens)
}

func TestTokenizerIsNotCalledInVain(t *testing.T) {
	w := &words{}
	r, _ := withWords(t, w, policy.UsesSession|policy.CallsOut)
	q := &policy.Request{}
	q.SetPrompt(policy.Prompt{Text: "hello"})
	var b Reservation
	require.NoError(t, r.Reserve(context.Background(), q, &b, How{NoWait: true}))
	b.Release()
	r, _ = withWords(t, w, policy.UsesPrompt)
	pinned := &policy.Request{Pin: "a"}
	pinned.SetPrompt(policy.Prompt{Text: "hello"})
	require.NoError(t, r.Reserve(context.Background(), pinned, &b, How{NoWait: true}))
	b.Release()
	require.Zero(t, w.calls)
}
