package routing

import "slices"

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

	// Prompt is the prompt, until DropPrompt. Policies read it in Prepare only.
	Prompt Prompt
	// PromptTokens is the length of the prompt in tokens; it outlives Prompt.
	PromptTokens int
	// ExpectedOutput is the number of output tokens asked for; 0 = unknown.
	ExpectedOutput int

	Pin     string   // id of the only replica that may serve it; "" = any
	Exclude []string // ids of replicas that must not serve it

	// Prepared belongs to the policy: what Prepare found, read by Choose and by
	// the observers. It may stem from an older View.
	Prepared any

	router   *Router // whose policy prepared it
	epoch    uint64  // of the View that Prepare saw
	attempt  int
	tried    []string
	anyModel bool // nobody in the fleet declares Model: it filters nothing
}

// Prompt is a prompt as the dialect found it: token ids, or text. It aliases
// the caller's message and must not be changed or kept.
type Prompt struct {
	Text   string
	Tokens []uint32
}

// BytesPerToken is how many bytes of text count as one token where no tokenizer
// is at hand.
const BytesPerToken = 4

// Len returns the length of the prompt in tokens, rounded up.
func (p Prompt) Len() int {
	if len(p.Tokens) > 0 {
		return len(p.Tokens)
	}
	return (len(p.Text) + BytesPerToken - 1) / BytesPerToken
}

// Empty reports whether there is no prompt.
func (p Prompt) Empty() bool { return len(p.Tokens) == 0 && p.Text == "" }

// SetPrompt sets the prompt and its length.
func (q *Request) SetPrompt(p Prompt) {
	q.Prompt = p
	q.PromptTokens = p.Len()
}

// DropPrompt forgets the prompt, so that the message it aliases can be freed
// while the call goes on.
func (q *Request) DropPrompt() { q.Prompt = Prompt{} }

// Rekey forgets the key and all that was prepared for it, so that the request can
// be filled anew. The attempts made so far stay.
func (q *Request) Rekey() { *q = Request{attempt: q.attempt, tried: q.tried} }

// Attempt returns the number of the attempt under way, 1 for the first.
func (q *Request) Attempt() int { return q.attempt + 1 }

// NextAttempt starts another attempt of the call. The replica of the one that
// failed, if it had one, is remembered: later picks prefer others.
func (q *Request) NextAttempt(failed *Replica) {
	q.attempt++
	if failed != nil && !slices.Contains(q.tried, failed.ID) {
		q.tried = append(q.tried, failed.ID)
	}
}

// Tried reports whether an earlier attempt of the call went to the replica.
func (q *Request) Tried(r *Replica) bool {
	return len(q.tried) > 0 && slices.Contains(q.tried, r.ID)
}

func (q *Request) excluded(r *Replica) bool {
	return len(q.Exclude) > 0 && slices.Contains(q.Exclude, r.ID)
}
