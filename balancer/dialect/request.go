package dialect

import (
	"errors"
	"strings"

	"github.com/warmpath/warmpath/balancer/routing"
	"google.golang.org/grpc/mem"
)

// WantModel asks [Method.Request] for model and adapter also where that takes
// parsing a JSON body or tensors. Hosts set it for fleets whose replicas declare
// models or adapters; policies have no use for it.
const WantModel routing.Uses = 1 << 7

// Request fills q from the first message of a call. What the host has set stays,
// so a session from metadata comes before one in the message. With a policy that
// uses neither prompt nor session only cheap scalars are read: of an encoded
// message that comes in several buffers, those in the first. The only error is
// [ErrContent]; all else that cannot be read is absent.
func (m *Method) Request(q *routing.Request, uses routing.Uses, msg any) error {
	if m == nil || q == nil || msg == nil {
		return nil
	}
	defer harmless()
	return m.readRequest(q, uses, msg)
}

// ErrContent is the error of a request with chat turns whose content cannot be read. It has no prompt then: what the
// turns have in common is not what they are.
var ErrContent = errors.New("the content of a chat turn cannot be read: messages.content leads to no text, list of parts or " +
	"google.protobuf.Value")

// harmless ends a panic. Messages are foreign code: a typed nil, a buffer that
// was freed, a Bytes method that does not expect to be called.
func harmless() { _ = recover() }

func (m *Method) readRequest(q *routing.Request, uses routing.Uses, msg any) error {
	prompt := uses&routing.UsesPrompt != 0 && q.Prompt.Empty()
	session := uses&routing.UsesSession != 0 && q.Session == ""
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
		q.Session = Session(v.session(f))
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
			v.mix(q)
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
func (v *values) prompt(f *fields) routing.Prompt {
	if len(v.tokens) > 0 {
		return routing.Prompt{Tokens: v.tokens}
	}
	for ref := f.from[slotPrompt]; ref < f.to[slotPrompt]; ref++ {
		text, _ := v.of(ref)
		if v.nbatch > 0 && v.batchRef == ref {
			text = renderBatch(v.batch, v.more)
		}
		if text != "" {
			return routing.Prompt{Text: text}
		}
	}
	if v.readable && !v.unread {
		return routing.Prompt{Text: alias(v.chat)}
	}
	return routing.Prompt{}
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
