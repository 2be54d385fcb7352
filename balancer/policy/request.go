package policy

import (
	"errors"
	"fmt"
	"slices"

	"github.com/warmpath/warmpath/internal/router/state"
)

// A Request is the request key: all that a policy may look at. The host fills
// it before the first pick and does not change the exported fields afterwards.
// A Request belongs to one call and serves every attempt of it; its methods are
// not safe for concurrent use, but for those that a View calls.
type Request struct {
	ID        string // request id; "" when the caller gave none
	Session   string // session key; "" when there is none
	Method    string // full gRPC method or route, for custom policies
	Model     string // served model name
	Adapter   string // LoRA adapter
	CacheSalt string // partition of the prefix cache
	Principal string // the caller's, where the host serves several and keeps their evidence apart; "" = none

	// Prompt is the prompt, until DropPrompt. Policies read it in Prepare only. A
	// Router with a Tokenizer makes tokens of a text before that.
	Prompt Prompt
	// PromptTokens is the length of the prompt in tokens; it outlives Prompt.
	PromptTokens int
	// ExpectedOutput is the number of output tokens asked for; 0 = unknown.
	ExpectedOutput int

	Pin     string   // id of the only replica that may serve it; "" = any
	Exclude []string // ids of replicas that must not serve it
	Allow   []string // ids of the only replicas that may serve it; none = any

	// Prepared belongs to the policy: what Prepare found, read by Choose and by
	// the observers. It may stem from an older View.
	Prepared any

	// Priority is the request's level where it has to wait.
	Priority Priority
	// Answer is how the host learns that the replica has answered. It reports that for every reservation.
	Answer Answer

	origin Origin // nil = only the key arrived
	state  state.Request
}

// State is the Router's part of the request.
func (q *Request) State() *state.Request { return &q.state }

// An Origin is where a request key was taken from.
type Origin interface {
	// Message returns the request message, nil where it is not at hand.
	Message() any
	// Header returns the values of a metadata key or HTTP header; case does not matter.
	Header(key string) []string
}

// SetOrigin gives the request what its key is taken from. Hosts do so before the first pick.
func (q *Request) SetOrigin(o Origin) { q.origin = o }

// Message returns what the key was taken from, for policies that look at more than the key, in Prepare and Choose only:
// in a client the request message as the application gave it, or the first one of a stream; in a server the body of
// an HTTP request as []byte. It is nil where only a key or hashes arrived and must not be changed or kept.
func (q *Request) Message() any {
	if q.origin == nil {
		return nil
	}
	return q.origin.Message()
}

// Header returns the values of a key in the outgoing metadata of a client's call, or in the headers or metadata with
// which a server was asked. As Message it is for Prepare and Choose only.
func (q *Request) Header(key string) []string {
	if q.origin == nil {
		return nil
	}
	return q.origin.Header(key)
}

// Prompt is a prompt as the dialect found it: token ids, or text, or only its
// hashes. It aliases the caller's message and must not be changed or kept.
type Prompt struct {
	Text   string
	Tokens []uint32
	// Hashed goes before the others.
	Hashed *Hashed
}

// Hashed is a prompt of which nothing is known but its blocks, hashed as package
// kvindex does with the seed of the request's model, adapter and salt.
type Hashed struct {
	// Hashes are one for each full block, and one for what follows the last. They are
	// not written again, so a policy may keep them.
	Hashes []uint64
	Size   int // of a block, in bytes or tokens
	Unit   int // bytes, or 1, per token
	Length int // of the prompt, as Size counts
}

// Check returns what is wrong with it, if anything is.
func (h *Hashed) Check() error {
	switch {
	case h.Size < 1 || h.Unit < 1 || h.Length < 1:
		return errors.New("block size and length must be positive")
	case len(h.Hashes) != (h.Length-1)/h.Size+1:
		return fmt.Errorf("%d hashes do not fit a length of %d in blocks of %d", len(h.Hashes), h.Length, h.Size)
	}
	return nil
}

// BytesPerToken is how many bytes of text count as one token where no tokenizer
// is at hand.
const BytesPerToken = 4

// Len returns the length of the prompt in tokens, rounded up.
func (p Prompt) Len() int {
	switch {
	case p.Hashed != nil:
		return (p.Hashed.Length-1)/p.Hashed.Unit + 1
	case len(p.Tokens) > 0:
		return len(p.Tokens)
	}
	return (len(p.Text) + BytesPerToken - 1) / BytesPerToken
}

// Empty reports whether there is no prompt.
func (p Prompt) Empty() bool { return len(p.Tokens) == 0 && p.Text == "" && p.Hashed == nil }

// SetPrompt sets the prompt and its length.
func (q *Request) SetPrompt(p Prompt) {
	q.Prompt = p
	q.PromptTokens = p.Len()
}

// DropPrompt drops the prompt, so that the message it aliases can be freed
// while the call goes on.
func (q *Request) DropPrompt() {
	q.Prompt = Prompt{}
	if q.state.Shadow != nil {
		q.state.Shadow.DropPrompt()
	}
}

// Rekey drops the key and all that was prepared for it, so that the request can
// be filled anew. The method and the attempts made so far stay. A copy of a request that was rekeyed may
// go its own way.
func (q *Request) Rekey() {
	was := &q.state
	*q = Request{Method: q.Method, Answer: q.Answer, origin: q.origin, state: state.Request{
		Attempt: was.Attempt, Tried: slices.Clip(was.Tried), QueuedAt: was.QueuedAt, Seq: was.Seq, Side: was.Side,
	}}
}

// Attempt returns the number of the attempt under way, 1 for the first.
func (q *Request) Attempt() int { return q.state.Attempt + 1 }

// NextAttempt starts another attempt of the call. The replica of the one that
// failed, if it had one, is remembered: later picks prefer others.
func (q *Request) NextAttempt(failed *Replica) {
	q.state.Attempt++
	if failed != nil && !slices.Contains(q.state.Tried, failed.ID) {
		q.state.Tried = append(q.state.Tried, failed.ID)
	}
}

// Resume starts the attempt after those that failed at these replicas, as NextAttempt does one by one. Of ids that the
// fleet of the View does not have only the attempt counts, and of the slice and its strings nothing is kept. It is
// for a request that had no attempts here. O(ids).
func (q *Request) Resume(v View, failed []string) {
	if len(failed) == 0 {
		return
	}
	seen := make(map[*Replica]bool)
	for _, id := range failed {
		q.state.Attempt++
		if r := v.ByID(id); r != nil && !seen[r] {
			seen[r] = true
			q.state.Tried = append(q.state.Tried, r.ID)
		}
	}
}

// Tried reports whether an earlier attempt of the call went to the replica.
func (q *Request) Tried(r *Replica) bool {
	return len(q.state.Tried) > 0 && q.state.HasTried(r.state, r.index, r.ID)
}

// TriedIDs returns the ids of the replicas at which earlier attempts of the call failed. Read only.
func (q *Request) TriedIDs() []string { return q.state.Tried }

// Adopt gives the decision for the request to the policy, for a host that serves another one with the same rollout,
// where that was decided.
func (q *Request) Adopt() { q.state.Side = state.ByPolicy }

// Settle drops which replicas the request excludes or allows, and where its attempts failed, for a host that
// keeps it for long after its last pick: policies that observe the end do not see them.
func (q *Request) Settle() {
	q.Session = SessionKey(q.Session)
	q.Exclude, q.Allow, q.origin = nil, nil, nil
	q.state.Tried, q.state.Sets = nil, nil
	if q.state.Shadow != nil {
		q.state.Shadow.Settle()
	}
}
