package router

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/state"
)

func TestWaiting(t *testing.T) {
	now := time.Unix(0, 0)
	r := connected(t, Options{Now: func() time.Time { return now }}, members(1)...)
	a := r.View().Replicas()[0]
	reserve := func(tokens int, answer state.Answer) *Reservation {
		return pick(t, r, answering(answer, policy.Request{PromptTokens: tokens}))
	}
	waits := func(want time.Duration) { t.Helper(); require.Equal(t, want, a.Waiting(now)) }

	defer reserve(0, state.AnswerMessage).Release()
	defer reserve(10, state.AnswerWhole).Release()
	now = now.Add(time.Second)
	waits(0) // neither's time is that of a prefill

	first, second := reserve(10, state.AnswerMessage), reserve(10, state.AnswerMessage)
	now = now.Add(time.Second)
	waits(time.Second)
	second.PrefillDone()
	waits(time.Second) // it was not the one that shows the wait
	first.PrefillDone()
	waits(0)
	first.Release()
	second.Release()

	third := reserve(10, state.AnswerMessage)
	now = now.Add(3 * time.Second)
	waits(3 * time.Second)
	third.Release() // it ended without a message
	third.PrefillDone()
	waits(0)
}
