package policy

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/warmpath/warmpath/internal/router/state"
)

// A Request is the request key: all that a policy may look at. The host fills
// it before the first pick and does not change the exported fields afterwards.
// A Request belongs to one call and serves every attempt of it; its methods are
// not safe for concurrent use, but for those that a View calls. It must not be kept
// after the call: its memory is used again.
type Request struct {
	ID        string // request id; "" when the caller gave none
	Session   string // session key; "" when there is none
	Method    string // full gRPC method or route, for custom policies
	Model     string // served model name
	Adapter   string // LoRA adapter
	CacheSalt string // partition of the prefix cache
	Principal string // the caller's, where the host serves several and keeps their evidence apart; "" = none

	// Prompt is the prompt, until the host drops it. Policies read it in Prepare only. A
	// Router with a Tokenizer makes tokens of a text before that.
	Prompt Prompt
	// PromptTokens is the length of the prompt in tokens; it outlives Prompt.
	PromptTokens int

	Pin     string   // id of the only replica that may serve it; "" = any
	Exclude []string // ids of replicas that must not serve it
	Allow   []string // ids of the only replicas that may serve it; none = any

	// Prepared belongs to the policy: what Prepare found, read by Choose and by
	// the observers. It may stem from an older View.
	Prepared any

	// Priority is the request's level in the queue: -1 low, 0 normal, 1 high. A level is worth 10 s of waiting: a request
	// goes before those of the level below that came up to 10 s earlier.
	Priority int

	parent uint16 // length of the parent in Session, which it begins with; 0 = there is none
	state  state.Request
}

// SetParent makes the session a child, unless it is one: parent/session. Where that is longer than a session may be, or
// one of them is empty, the session stays alone.
func (q *Request) SetParent(parent string) {
	q.parent = 0
	if parent == "" || q.Session == "" {
		return
	}
	whole := q.Session
	if !strings.HasPrefix(whole, parent+"/") {
		whole = parent + "/" + whole
	}
	if len(whole) <= state.MaxSession {
		q.Session, q.parent = whole, uint16(len(parent))
	}
}

// Parent returns the session that this one is a child of, "" where it is none.
func (q *Request) Parent() string { return q.Session[:min(int(q.parent), len(q.Session))] }

// Affinity returns the session that a request without a prompt is routed by: the parent where there is one, so that a
// child begins where its parent's cache is.
func (q *Request) Affinity() string { return cmp.Or(q.Parent(), q.Session) }

// Spare returns what Prepare left in Prepared of a request that has ended, so that its memory can be used again, and
// keeps nothing of it; nil = there is none.
func (q *Request) Spare() any {
	if q.state.Spare == nil {
		return nil
	}
	spare := *q.state.Spare
	*q.state.Spare = nil
	return spare
}

// Message returns what the key was taken from, for policies that look at more than the key, in Prepare and Choose only:
// in a client the request message as the application gave it, or the first one of a stream; in a server the body of
// an HTTP request as []byte. It is nil where only a key or hashes arrived and must not be changed or kept.
func (q *Request) Message() any {
	if q.state.Origin == nil {
		return nil
	}
	return q.state.Origin.Message()
}

// Header returns the values of a key in the outgoing metadata of a client's call, or in the headers or metadata with
// which a server was asked. Like Message it is for Prepare and Choose only.
func (q *Request) Header(key string) []string {
	if q.state.Origin == nil {
		return nil
	}
	return q.state.Origin.Header(key)
}

// Prompt is a prompt as the dialect found it: token ids, or text, or only its
// hashes. It aliases the caller's message and must not be changed or kept.
type Prompt struct {
	Text   string
	Tokens []uint32
	// Hashed is used before the others.
	Hashed *Hashed
}

// Hashed is a prompt of which nothing is known but its blocks, hashed as package
// kvindex does with the seed of the request's model, adapter and salt.
type Hashed struct {
	// Hashes are one for each full block, and one for what follows the last. They are
	// not written again, so a policy may keep them.
	Hashes []uint64
	Size   int // of a block, in bytes or tokens
	Unit   int // bytes of text per token; 1 for token ids
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

// BytesPerToken is how many bytes of text count as one token if no tokenizer is at hand and no engine has reported the
// length of a prompt of the model.
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

// Attempt returns the number of the attempt under way, 1 for the first.
func (q *Request) Attempt() int { return q.state.Attempt + 1 }

// Tried reports whether an earlier attempt of the call went to the replica.
func (q *Request) Tried(r *Replica) bool {
	return len(q.state.Tried) > 0 && q.state.HasTried(r.ID)
}
