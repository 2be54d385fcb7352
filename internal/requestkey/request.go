package requestkey

import (
	"cmp"
	"errors"
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/balancer/policy"
)

// WantModel asks [Method.Request] for model and adapter also where that takes
// parsing a JSON body or tensors. Hosts set it for fleets whose replicas declare
// models or adapters; policies have no use for it.
const WantModel policy.Uses = 1 << 7

// ErrContent is the error of a request with chat turns whose content cannot be read. It has no prompt then: what the
// turns have in common is not what they are.
var ErrContent = errors.New("the content of a chat turn cannot be read: messages.content leads to no text, " +
	"list of parts or google.protobuf.Value")

// Request fills q from the first message of a call. What the host has set stays,
// so a session from metadata comes before one in the message. With a policy that
// uses neither prompt nor session only cheap scalars are read: of an encoded
// message that comes in several buffers, those in the first. The only error is
// [ErrContent]; all else that cannot be read is absent.
func (m *Method) Request(q *policy.Request, uses policy.Uses, msg any) error {
	if m == nil || q == nil || msg == nil {
		return nil
	}
	defer harmless()
	return m.readRequest(q, uses, msg)
}

func (m *Method) readRequest(q *policy.Request, uses policy.Uses, msg any) error {
	prompt := uses&policy.UsesPrompt != 0 && q.Prompt.Empty()
	session := uses&policy.UsesSession != 0 && q.Session == ""
	s := m.request.open(msg, prompt || session || uses&WantModel != 0)
	body := ""
	if s.whole {
		body, _ = s.first(slotJSON)
	}
	parameters := body != "" && m.request.paths[slotJSON][0].tensor()
	if parameters { // which come before tensors of their own, and are no OpenAI request
		o := objectOf(bytesOf(body), parameterNames)
		q.Adapter = cmp.Or(q.Adapter, o.text("lora_name"))
	}
	s.fill(&q.ID, slotRequestID)
	s.fill(&q.Model, slotModel)
	s.fill(&q.Adapter, slotAdapter)
	s.fill(&q.CacheSalt, slotCacheSalt)
	if session {
		s.fill(&q.Session, slotSession)
		q.Session = Session(q.Session)
	}
	unread := prompt && m.prompt(q, &s)
	if body != "" && !parameters {
		readBody(bytesOf(body)).fill(q, true, session, prompt)
	}
	if unread && q.Prompt.Empty() {
		return ErrContent
	}
	return nil
}

// Usage reads the usage that one response message carries into u, which starts
// as [policy.NoUsage], and reports whether there was any. It is called for
// every message of a call: totals raise u, deltas are added to it. A message
// that counts prompt tokens and leaves cached tokens at zero means that none were
// cached, since encoded zeros are left out.
func (m *Method) Usage(u *policy.Usage, msg any) bool {
	if u == nil || msg == nil || !m.HasUsage() {
		return false
	}
	defer harmless()
	return m.readUsage(u, msg)
}

func (m *Method) readUsage(u *policy.Usage, msg any) (found bool) {
	s := m.response.open(msg, true)
	if n, ok := s.count(slotUsageDelta); ok {
		u.OutputTokens = min(max(u.OutputTokens, 0)+n, math.MaxInt32)
		found = true
	}
	n, ok := s.count(slotUsageOutput)
	found = raise(&u.OutputTokens, n, ok) || found
	prompt, ok := s.count(slotUsagePrompt)
	found = raise(&u.PromptTokens, prompt, ok) || found
	n, ok = s.count(slotUsageCached)
	found = raise(&u.CachedTokens, n, ok || prompt > 0 && m.zeroIsAbsent) || found
	if body, _ := s.first(slotUsageJSON); body != "" {
		found = readUsageJSON(u, bytesOf(body)) || found
	}
	return found
}

// raise sets u to n if n is more.
func raise(u *int, n int, ok bool) bool {
	if ok {
		*u = max(*u, n)
	}
	return ok
}

// Abort returns the method that ends the request which has the id, "" where there is none. Its
// request is a message whose field 1 is the id.
func (m *Method) Abort() string {
	if m == nil {
		return ""
	}
	return m.dialect.Abort
}

// Aborts reports whether requests of the method are to be ended by a call of their own when
// they are cancelled: whether [Method.Abort] can return something.
func (m *Method) Aborts() bool { return m.Abort() != "" }

// RequestID reads the request id out of a request message, "" where it has none.
func (m *Method) RequestID(msg any) (id string) {
	if m == nil || msg == nil {
		return ""
	}
	defer harmless()
	s := m.request.open(msg, false)
	s.fill(&id, slotRequestID)
	return id
}

// TakesRank reports whether requests of the method have a field for the data-parallel rank.
func (m *Method) TakesRank() bool { return m != nil && m.rank != 0 }

// HasRank reports whether the application has set the rank in a request message.
func (m *Method) HasRank(msg any) (set bool) {
	if !m.TakesRank() || msg == nil {
		return false
	}
	defer harmless()
	s := m.request.open(msg, true)
	s.alternative(slotRank, 0, func(value) { set = true })
	return set
}

// EncodedRank returns the field of the rank as it is appended to an encoded request.
func (m *Method) EncodedRank(rank int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, m.rank, protowire.VarintType), uint64(rank))
}
