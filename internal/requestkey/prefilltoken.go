package requestkey

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A prefillToken is the first token of a greedy output, which the prefill leg of a request has before the decode leg.
// The decode leg computes it again, and its repetition is removed. Should the two differ, the decode leg's output does
// not follow what the application has: then another attempt goes on behind the token.
type prefillToken struct {
	wanted  bool   // the application has no token yet
	given   bool   // it has the prefill leg's, which the decode leg repeats
	text    string // of the token; empty where messages have no text
	differs bool   // the decode leg has another one
}

// greedy reports whether the output of a request is not sampled, so that its tokens are the same at every replica.
func (p *outputRule) greedy(request proto.Message) bool {
	in, fd := p.temperature.find(request.ProtoReflect())
	if in == nil {
		return len(p.temperature.alts) > 0 && !p.sampled
	}
	return in.Get(fd).Float() == 0
}

// WantsPrefilled reports whether the application may get the first token from the prefill leg.
func (o *Output) WantsPrefilled() bool { return o.prefill.wanted }

// Differs reports whether the decode leg began with another token than the one that the application has.
func (o *Output) Differs() bool { return o.prefill.differs }

// Prefilled makes a response of the prefill leg the one with the first token, as the decode leg would send it. It
// returns false where the application is to wait for the decode leg.
func (o *Output) Prefilled(msg any) (ok bool) {
	defer harmless()
	typed, isProto := msg.(proto.Message)
	if !isProto {
		return false
	}
	m, p := typed.ProtoReflect(), o.method.output
	ids, text := p.tokens.ids(m), ""
	if o.text {
		text = p.text.string(m)
	}
	if len(ids) != 1 || o.text && !wholeText(text) {
		return false
	}
	p.final.remove(m)
	if !p.message.allows(m, "") { // such as its log probability, which would come twice
		return false
	}
	o.ids, o.prefill = append(o.ids, ids...), prefillToken{given: true, text: text}
	return true
}

// repeats takes in a message of the decode leg and its ids while the token that the application has is to be repeated.
// It removes the token, and what only the first message has.
func (o *Output) repeats(msg proto.Message, ids []uint32, final bool) (deliver, useless bool) {
	m, p := msg.ProtoReflect(), o.method.output
	p.once.remove(m)
	if len(ids) == 0 {
		return final, false
	}
	if ids[0] != o.ids[0] || !o.cutText(m) {
		o.prefill = prefillToken{differs: true}
		return false, false
	}
	p.tokens.remove(m)
	patch := p.tokens.numbers(nil, ids[1:])
	patch = o.method.usageDelta.renumber(patch, m, func(n int64) int64 { return n - 1 })
	if merge.Unmarshal(patch, msg) != nil {
		return true, true
	}
	o.prefill = prefillToken{}
	if len(ids) > 1 || final {
		deliver, useless = o.Read(msg)
	}
	return deliver, useless || !o.method.dialect.Resume
}

// cutText removes the text of the token from the beginning of a message's. It returns false where that is another.
func (o *Output) cutText(m protoreflect.Message) bool {
	if !o.text {
		return true
	}
	in, fd := o.method.output.text.find(m)
	if in == nil {
		return false
	}
	rest, ok := strings.CutPrefix(in.Get(fd).String(), o.prefill.text)
	in.Set(fd, protoreflect.ValueOfString(rest))
	return ok
}
