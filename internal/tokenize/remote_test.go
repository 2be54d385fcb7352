package tokenize

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/internal/requestkey"
)

// engine serves a handler and returns a tokenizer that calls it.
func engine(t testing.TB, h http.HandlerFunc) *remote {
	t.Helper()
	s := httptest.NewServer(h)
	r := newRemote(s.URL + "/tokenize")
	t.Cleanup(func() {
		require.NoError(t, r.Close())
		s.Close()
	})
	return r
}

func TestRemoteRequestsOfEachEngine(t *testing.T) {
	var got map[string]any
	r := engine(t, func(w http.ResponseWriter, q *http.Request) {
		require.Equal(t, "POST /tokenize application/json", q.Method+" "+q.URL.Path+" "+q.Header.Get("Content-Type"))
		got = nil
		require.NoError(t, json.NewDecoder(q.Body).Decode(&got))
		_, _ = io.WriteString(w, `{"count":3,"max_model_len":8192,"tokens":[1,2,4294967295],"token_strs":null}`)
	})
	tokens, err := r.Tokens(context.Background(), dialect.TokenizerInput{Model: "m", Text: "hi", Special: true})
	require.NoError(t, err)
	require.Equal(t, []uint32{1, 2, 4294967295}, tokens)
	require.Equal(t, map[string]any{"model": "m", "prompt": "hi", "add_special_tokens": true}, got)

	_, err = r.chatTokens(context.Background(), "", requestkey.Chat{
		Tools: []json.RawMessage{json.RawMessage(`{"type":"function"}`)},
		Messages: []map[string]any{
			{"role": "user", "name": "ann", "content": "a\nb"},
			{"role": "tool", "tool_call_id": "c", "content": "42"},
		},
	})
	require.NoError(t, err)
	require.Equal(t, map[string]any{
		"add_special_tokens": false, "add_generation_prompt": true,
		"tools": []any{map[string]any{"type": "function"}},
		"messages": []any{
			map[string]any{"role": "user", "name": "ann", "content": "a\nb"},
			map[string]any{"role": "tool", "tool_call_id": "c", "content": "42"},
		},
	}, got)
}

func TestRemoteInvalidAnswers(t *testing.T) {
	for name, answer := range map[string]string{
		"nonsense": "<html>", "empty": "", "no tokens": `{"count":3}`, "none": `{"tokens":[]}`, "negative": `{"tokens":[-1]}`,
		"too large": `{"tokens":[4294967296]}`, "strings": `{"tokens":["a"]}`, "batch": `{"tokens":[[1],[2]]}`, "list": `[1]`,
	} {
		t.Run(name, func(t *testing.T) {
			r := engine(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) })
			_, err := r.Tokens(context.Background(), dialect.TokenizerInput{Text: "x"})
			require.ErrorIs(t, err, errAnswer)
		})
	}
}

func TestRemoteBoundsTheAnswer(t *testing.T) {
	r := engine(t, func(w http.ResponseWriter, _ *http.Request) {
		chunk := []byte(strings.Repeat("1,", 1<<19))
		_, _ = io.WriteString(w, `{"tokens":[`)
		for err := error(nil); err == nil; {
			_, err = w.Write(chunk) // until the client goes away
		}
	})
	_, err := r.Tokens(context.Background(), dialect.TokenizerInput{Text: "x"})
	require.ErrorContains(t, err, "the answer is longer than 16 MiB")
}

func TestRemotePausesAfterAFailure(t *testing.T) {
	calls, status := 0, http.StatusInternalServerError
	r := engine(t, func(w http.ResponseWriter, _ *http.Request) {
		calls++
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"tokens":[1]}`)
	})
	now := time.Unix(1000, 0)
	r.now = func() time.Time { return now }
	ask := func() error {
		_, err := r.Tokens(context.Background(), dialect.TokenizerInput{Text: "secret"})
		return err
	}
	err := ask()
	require.ErrorContains(t, err, "HTTP status 500 Internal Server Error")
	require.NotContains(t, err.Error(), "secret")
	for range 3 {
		require.ErrorIs(t, ask(), ErrResting)
		now = now.Add(pause - 1)
		require.ErrorIs(t, ask(), ErrResting)
		now = now.Add(1)
		before := calls
		require.ErrorContains(t, ask(), "500")
		require.Equal(t, before+1, calls)
	}
	now, status = now.Add(pause), http.StatusOK
	require.NoError(t, ask())
	require.NoError(t, ask())
	status = http.StatusBadRequest // of this prompt, perhaps too long
	require.ErrorContains(t, ask(), "400")
	require.NotErrorIs(t, ask(), ErrResting)
}

func TestRemoteEndsWithTheContext(t *testing.T) {
	leave := make(chan struct{})
	r := engine(t, func(http.ResponseWriter, *http.Request) { <-leave })
	defer close(leave)
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, err := r.Tokens(ctx, dialect.TokenizerInput{Text: "x"})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = r.Tokens(context.Background(), dialect.TokenizerInput{Text: "x"})
	require.ErrorIs(t, err, ErrResting)

	r.until.Store(0)
	ended, end := context.WithCancel(context.Background())
	end()
	_, err = r.Tokens(ended, dialect.TokenizerInput{Text: "x"})
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, r.until.Load(), "a caller that left is no evidence about the engine")
}

func TestRemoteWithoutAServer(t *testing.T) {
	s := httptest.NewServer(nil)
	url := s.URL
	s.Close()
	r := newRemote(url)
	_, err := r.Tokens(context.Background(), dialect.TokenizerInput{Text: "x"})
	require.ErrorContains(t, err, "tokenize: "+url+": dial tcp")
	require.False(t, errors.Is(err, ErrResting))
}

func FuzzAnswer(f *testing.F) {
	for _, s := range []string{`{"tokens":[1,2]}`, `{"tokens":[[1]]}`, `{}`, `{"tokens":[1e3]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		if tokens, err := readAnswer(answer); err == nil {
			require.NotEmpty(t, tokens)
		}
	})
}
