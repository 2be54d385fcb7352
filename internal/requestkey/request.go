package requestkey

import (
	"errors"
	"math"
	"strings"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/balancer/policy"
)

// WantModel asks [Method.Request] for model and adapter also where that takes
// parsing a JSON body or tensors. Hosts set it for fleets whose replicas declare
// models or adapters; policies have no use for it.
const WantModel policy.Uses = 1 << 7

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

// ErrContent is the error of a request with chat turns whose content cannot be read. It has no prompt then: what the
// turns have in common is not what they are.
var ErrContent = errors.New("the content of a chat turn cannot be read: messages.content leads to no text, " +
	"list of parts or google.protobuf.Value")

// harmless ends a panic. Messages are foreign code: a typed nil, a buffer that
// was freed, a Bytes method that does not expect to be called.
func harmless() { _ = recover() }

func (m *Method) readRequest(q *policy.Request, uses policy.Uses, msg any) error {
	prompt := uses&policy.UsesPrompt != 0 && q.Prompt.Empty()
	session := uses&policy.UsesSession != 0 && q.Session == ""
	v := values{need: scalarSlots}
	if session {
		v.need |= slotSession.bit()
	}
	if prompt {
		v.need |= promptSlots
	}
	if prompt || session || uses&WantModel != 0 {
		v.need |= slotJSON.bit()
	}
	f := &m.request
	if v.need &= f.slots; v.need != 0 {
		f.read(msg, &v)
	}

	v.fill(&q.ID, f, slotRequestID)
	v.fill(&q.Model, f, slotModel)
	v.fill(&q.Adapter, f, slotAdapter)
	v.fill(&q.CacheSalt, f, slotCacheSalt)
	if session {
		if s := v.session(f); s != "" {
			q.Session = Session(s)
		}
	}
	if m.dialect.SplitModel && q.Adapter == "" {
		if base, adapter, ok := strings.Cut(q.Model, ":"); ok {
			q.Model, q.Adapter = base, adapter
		}
	}
	if q.ExpectedOutput == 0 {
		q.ExpectedOutput, _ = v.count(f, slotMaxTokens)
	}
	if prompt {
		if p := v.prompt(f); !p.Empty() {
			q.SetPrompt(p)
			if len(v.media) > 0 {
				v.mix(q)
			}
		}
	}
	if m.dialect.Tensors != nil && (prompt || uses&WantModel != 0) {
		m.readTensors(q, msg, prompt)
	}
	if raw, ok := v.first(f, slotJSON); ok {
		b := readBody(bytesOf(raw))
		b.fill(q, m.dialect.SplitModel, session, prompt)
	}
	if q.ExpectedOutput == 0 {
		q.ExpectedOutput = m.dialect.DefaultMaxTokens
	}
	if len(v.chat) > 0 && q.Prompt.Empty() {
		return ErrContent
	}
	return nil
}

// prompt returns token ids, else text, else chat turns whose contents could be read.
func (v *values) prompt(f *fields) policy.Prompt {
	if len(v.tokens) > 0 {
		return policy.Prompt{Tokens: v.tokens}
	}
	for ref := f.from[slotPrompt]; ref < f.to[slotPrompt]; ref++ {
		text, _ := v.of(ref)
		if v.nbatch > 0 && v.batchRef == ref {
			text = renderBatch(v.batch, v.more)
		}
		if text != "" {
			return policy.Prompt{Text: text}
		}
	}
	if v.readable && !v.unread {
		return policy.Prompt{Text: alias(v.chat)}
	}
	return policy.Prompt{}
}

// Usage reads the usage that one response message carries into u, which starts
// as [policy.NoUsage], and reports whether there was any. It is called for
// every message of a call: totals raise u, deltas are added to it. A message
// that counts prompt tokens and leaves cached tokens at zero means that none were
// cached, since encoded zeros are left out.
func (m *Method) Usage(u *policy.Usage, msg any) bool {
	if m == nil || u == nil || msg == nil || m.response.slots == 0 {
		return false
	}
	defer harmless()
	return m.readUsage(u, msg)
}

func (m *Method) readUsage(u *policy.Usage, msg any) (found bool) {
	f := &m.response
	v := values{need: f.slots}
	f.read(msg, &v)
	if v.set|v.sums == 0 {
		return false
	}
	if n, ok := v.count(f, slotUsageDelta); ok {
		u.OutputTokens = min(max(u.OutputTokens, 0)+n, math.MaxInt32)
		found = true
	}
	n, ok := v.count(f, slotUsageOutput)
	found = raise(&u.OutputTokens, n, ok) || found
	prompt, ok := v.count(f, slotUsagePrompt)
	found = raise(&u.PromptTokens, prompt, ok) || found
	n, ok = v.count(f, slotUsageCached)
	if !ok && prompt > 0 && m.zeroIsAbsent(&v) {
		n, ok = 0, true
	}
	found = raise(&u.CachedTokens, n, ok) || found
	if raw, ok := v.first(f, slotUsageJSON); ok {
		found = readUsageJSON(u, bytesOf(raw)) || found
	}
	return found
}

// zeroIsAbsent reports whether cached tokens stand in a number, whose zero is
// not encoded, and not in a map, where absent means not known.
func (m *Method) zeroIsAbsent(v *values) bool {
	f := &m.response
	for ref := f.from[slotUsagePrompt]; ref < f.to[slotUsagePrompt]; ref++ {
		if v.set&(1<<ref) != 0 && !v.val[ref].number {
			return false
		}
	}
	return f.slots&slotUsageCached.bit() != 0
}

// raise sets u to n if n is more.
func raise(u *int, n int, ok bool) bool {
	if ok {
		*u = max(*u, n)
	}
	return ok
}

// Aborts reports whether requests of the method are to be ended by a call of their own when
// they are cancelled: whether [Method.Abort] can return something.
func (m *Method) Aborts() bool { return m != nil && m.dialect.Abort != "" }

// Abort returns the method that ends the request which has the id, "" where there is none. Its
// request is a message whose field 1 is the id.
func (m *Method) Abort() string {
	if m == nil {
		return ""
	}
	return m.dialect.Abort
}

// RequestID reads the request id out of a request message, "" where it has none.
func (m *Method) RequestID(msg any) (id string) {
	v, f := m.one(slotRequestID, msg)
	v.fill(&id, f, slotRequestID)
	return id
}

// TakesRank reports whether requests of the method have a field for the data-parallel rank.
func (m *Method) TakesRank() bool { return m != nil && m.dialect.Rank != "" }

// HasRank reports whether the application has set the rank in a request message.
func (m *Method) HasRank(msg any) bool {
	v, _ := m.one(slotRank, msg)
	return v.set != 0
}

// EncodedRank returns the field of the rank as it is appended to an encoded request.
func (m *Method) EncodedRank(rank int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, m.rank, protowire.VarintType), uint64(rank))
}

// one reads what one slot needs of a request message.
func (m *Method) one(s slot, msg any) (v values, f *fields) {
	if m == nil || msg == nil || m.request.slots&s.bit() == 0 {
		return values{}, &fields{}
	}
	defer harmless()
	v, f = values{need: s.bit()}, &m.request
	f.read(msg, &v)
	return v, f
}

// encoded returns the bytes of an encoded message. Of several buffers it returns
// the first alone unless the whole is wanted.
func encoded(msg any, whole bool) ([]byte, bool) {
	switch b := msg.(type) {
	case []byte:
		return b, true
	case *[]byte:
		if b == nil {
			return nil, true
		}
		return *b, true
	case *mem.BufferSlice:
		if b == nil {
			return nil, true
		}
		return encoded(*b, whole)
	case mem.BufferSlice:
		switch {
		case len(b) == 0:
			return nil, true
		case len(b) == 1 || !whole:
			return b[0].ReadOnlyData(), true
		}
		return b.Materialize(), true
	case mem.Buffer:
		return b.ReadOnlyData(), true
	}
	return nil, false
}

// read reads a message of any shape.
func (f *fields) read(msg any, v *values) {
	if b, ok := encoded(msg, v.need&^scalarSlots != 0); ok {
		f.readRaw(b, v)
		return
	}
	f.readTyped(msg, v)
}
