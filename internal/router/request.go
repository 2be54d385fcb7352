package router

import (
	"slices"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
)

// NextAttempt starts another attempt of the call. The replica of the one that
// failed, if it had one, is remembered: later picks prefer others.
func NextAttempt(q *policy.Request, failed *policy.Replica) {
	s := part.OfRequest(q)
	s.Attempt++
	if failed != nil && !s.HasTried(failed.ID) {
		s.Tried = append(s.Tried, failed.ID)
	}
}

// Rekey drops the key and all that was prepared for it, so that the request can
// be filled anew. The method and the attempts made so far stay. A copy of a request that was rekeyed may
// go its own way.
func Rekey(q *policy.Request) {
	s := part.OfRequest(q)
	was := *s
	*q = policy.Request{Method: q.Method}
	*s = state.Request{
		Answer: was.Answer, Origin: was.Origin, Attempt: was.Attempt, Tried: slices.Clip(was.Tried), QueuedAt: was.QueuedAt, Seq: was.Seq,
		Came: was.Came, Side: was.Side,
	}
}

// DropPrompt drops the prompt, so that the message it aliases can be freed
// while the call goes on.
func DropPrompt(q *policy.Request) { q.Prompt = policy.Prompt{} }

// Settle drops which replicas the request excludes or allows, and where its attempts failed, for a host that
// keeps it for long after its last pick: policies that observe the end do not see them.
func Settle(q *policy.Request) {
	s := part.OfRequest(q)
	q.Session = state.SessionKey(q.Session)
	q.SetParent("")
	q.Exclude, q.Allow = nil, nil
	s.Origin, s.Tried, s.Sets = nil, nil, nil
	if x := shadowOf(q); x != nil {
		Settle(&x.request)
	}
	if s.Legs != nil && q != &legsOf(q).request {
		Settle(&legsOf(q).request)
	}
}
