package dialect

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/warmpath/warmpath/balancer/routing"
	"google.golang.org/grpc/mem"
)

// WantModel asks [Method.Request] for model and adapter also where that takes
// parsing a JSON body or tensors. Hosts set it for fleets whose replicas declare
// models or adapters; policies have no use for it.
const WantModel routing.Uses = 1 << 7

const (
	scalarSlots = 1<<slotRequestID | 1<<slotModel | 1<<slotAdapter | 1<<slotCacheSalt | 1<<slotMaxTokens
	promptSlots = 1<<slotPrompt | 1<<slotTokens | 1<<slotMessages
)

// Request fills q from the first message of a call. What the host has set stays,
// so a session from metadata comes before one in the message. With a policy that
// uses neither prompt nor session only cheap scalars are read: of an encoded
// message that comes in several buffers, those in the first.
func (m *Method) Request(q *routing.Request, uses routing.Uses, msg any) {
	if m == nil || q == nil || msg == nil {
		return
	}
	defer harmless()
	m.readRequest(q, uses, msg)
}

// harmless ends a panic. Messages are foreign code: a typed nil, a buffer that
// was freed, a Bytes method that does not expect to be called.
func harmless() { _ = recover() }

func (m *Method) readRequest(q *routing.Request, uses routing.Uses, msg any) {
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

	fill(&q.ID, f, &v, slotRequestID)
	fill(&q.Model, f, &v, slotModel)
	fill(&q.Adapter, f, &v, slotAdapter)
	fill(&q.CacheSalt, f, &v, slotCacheSalt)
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
		m.fillPrompt(q, &v)
	}
	if m.dialect.Tensors != nil && (prompt || uses&WantModel != 0) {
		m.readTensors(q, msg, prompt)
	}
	if raw, ok := v.first(f, slotJSON); ok {
		m.readJSON(q, bytesOf(raw), session, prompt)
	}
	if q.ExpectedOutput == 0 {
		q.ExpectedOutput = m.dialect.DefaultMaxTokens
	}
}

// fillPrompt takes token ids, else text, else chat turns.
func (m *Method) fillPrompt(q *routing.Request, v *values) {
	if len(v.tokens) > 0 {
		q.SetPrompt(routing.Prompt{Tokens: v.tokens})
		return
	}
	for ref := m.request.from[slotPrompt]; ref < m.request.to[slotPrompt]; ref++ {
		text, _ := v.text(ref)
		if v.nbatch > 0 && v.batchRef == ref {
			text = renderBatch(v.batch, v.more)
		}
		if text != "" {
			q.SetPrompt(routing.Prompt{Text: text})
			return
		}
	}
	if len(v.chat) > 0 {
		q.SetPrompt(routing.Prompt{Text: alias(v.chat)})
	}
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

// readRaw reads an encoded message. Its memory may be reused after the call, so
// whatever outlives the prompt is copied.
func (f *fields) readRaw(b []byte, v *values) {
	v.borrowed = true
	f.root.walk(b, v)
}

// text returns the text read for a ref; numbers other than 0 are written out.
func (v *values) text(ref uint8) (string, bool) {
	x := &v.val[ref]
	switch {
	case v.set&(1<<ref) == 0:
		return "", false
	case !x.number:
		return x.text, true
	case x.num != 0:
		return strconv.FormatInt(x.num, 10), true
	}
	return "", false
}

// first returns the text of the best alternative of a slot that has one.
func (v *values) first(f *fields, s slot) (string, bool) {
	for ref := f.from[s]; ref < f.to[s]; ref++ {
		if text, ok := v.text(ref); ok && text != "" {
			return text, true
		}
	}
	return "", false
}

// session returns the best session that is text: what a field that once was a message holds is passed over.
func (v *values) session(f *fields) string {
	for ref := f.from[slotSession]; ref < f.to[slotSession]; ref++ {
		if text, ok := v.text(ref); ok && text != "" && utf8.ValidString(text) && !strings.ContainsFunc(text, isControl) {
			if v.borrowed {
				text = strings.Clone(text)
			}
			return text
		}
	}
	return ""
}

func isControl(r rune) bool { return r < ' ' }

// fill sets dst, if it is empty, to the text of a slot.
func fill(dst *string, f *fields, v *values, s slot) {
	if *dst != "" || v.set == 0 {
		return
	}
	if text, ok := v.first(f, s); ok {
		if v.borrowed {
			text = strings.Clone(text)
		}
		*dst = text
	}
}

func setIfEmpty(dst *string, s string) {
	if *dst == "" {
		*dst = s
	}
}

// count returns the count of the best alternative of a slot that has one.
func (v *values) count(f *fields, s slot) (int, bool) {
	for ref := f.from[s]; ref < f.to[s]; ref++ {
		x := &v.val[ref]
		switch {
		case v.sums&(1<<ref) != 0:
			return count(x.sum)
		case v.set&(1<<ref) == 0:
		case x.number:
			return count(x.num)
		default:
			return parseCount(x.text)
		}
	}
	return 0, false
}

// count returns n if it can be a number of tokens.
func count(n int64) (int, bool) {
	if n < 0 || n > math.MaxInt32 {
		return 0, false
	}
	return int(n), true
}

func parseCount(s string) (int, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, false
	}
	return count(n)
}
