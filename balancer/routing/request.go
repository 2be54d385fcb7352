package routing

import (
	"errors"
	"fmt"
	"slices"

	"github.com/warmpath/warmpath/internal/outlier"
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
	Principal string // the caller's, where the host serves several and tells their evidence apart; "" = none

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
	// Answer says what the host will tell of the answer; it must tell it to every booking.
	Answer Answer

	// Small fields stand together: a host keeps a Request in every call.
	anyModel bool // nobody in the fleet declares Model: it filters nothing
	asked    bool // the Tokenizer was asked for the tokens of Prompt
	side     side // who decides, where a Rollout is in force
	// lastResort: during a choice, replicas that say that they drain are better than none.
	lastResort bool
	unasked    bool // the policy is not asked in the choice under way: Options.Plain decides
	query      bool // the pick under way is a Query

	origin  Origin  // nil = only the key arrived
	router  *Router // whose policy prepared it
	epoch   uint64  // of the View that Prepare saw
	attempt int
	lot     uint64 // see View.Lot; 0 = not drawn
	tried   []string
	cameTo  *Router // that gave it seq
	seq     uint64
	ahead   int64    // prompt tokens queued at the replica, of others too, at the last pick
	keeper  *Replica // drains, and keeps this session
	shade   *shade   // as the shadow policy sees it; nil = there is none
	// narrowed is made of Exclude, Allow and tried where they are long; nil = they are not.
	narrowed *narrowing

	mark outlier.Mark // of the last pick
}

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
// in a client the request message as the application gave it, or the first one of a stream; in a server the body of an HTTP
// request as []byte. It is nil where only a key or hashes arrived and must not be changed or kept.
func (q *Request) Message() any {
	if q.origin == nil {
		return nil
	}
	return q.origin.Message()
}

// Header returns the values of a key in the outgoing metadata of a client's call, or in the headers or metadata with which a
// server was asked. As Message it is for Prepare and Choose only.
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

// Check says what is wrong with it, if anything is.
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

// DropPrompt forgets the prompt, so that the message it aliases can be freed
// while the call goes on.
func (q *Request) DropPrompt() {
	q.Prompt = Prompt{}
	if q.shade != nil {
		q.shade.request.Prompt = Prompt{}
	}
}

// Rekey forgets the key and all that was prepared for it, so that the request can
// be filled anew. The method and the attempts made so far stay. A copy of a request that was rekeyed may
// go its own way.
func (q *Request) Rekey() {
	*q = Request{Method: q.Method, origin: q.origin, attempt: q.attempt, tried: slices.Clip(q.tried), cameTo: q.cameTo, seq: q.seq, Answer: q.Answer, side: q.side}
}

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

// Resume starts the attempt after those that failed at these replicas, as NextAttempt does one by one. Of ids that the
// fleet of the View does not have only the attempt counts, and of the slice and its strings nothing is kept. It is for a
// request that had no attempts here. O(ids).
func (q *Request) Resume(v *View, failed []string) {
	if len(failed) == 0 {
		return
	}
	seen := newPlaces(v.fleet)
	for _, id := range failed {
		q.attempt++
		if r := v.ByID(id); r != nil && !seen.has(r) {
			seen.put(r)
			q.tried = append(q.tried, r.ID)
		}
	}
}

// Settle forgets which replicas the request excludes or allows, and where its attempts failed, for a host that
// keeps it for long after its last pick: policies that are told of the end do not see them.
func (q *Request) Settle() {
	q.Session = SessionKey(q.Session)
	q.Exclude, q.Allow, q.tried, q.narrowed, q.origin = nil, nil, nil, nil, nil
	if s := q.shade; s != nil {
		s.request.origin = nil
		s.request.Exclude, s.request.Allow, s.request.tried, s.request.narrowed = nil, nil, nil, nil
	}
}
