package requestkey

import (
	"math"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/warmpath/warmpath/balancer/dialect"
)

// An outputForm is where the streams of an engine have their output, for those that can go on at another replica: each
// message but the last has the new token ids alone.
type outputForm struct {
	tokens place // the new token ids of a message
	text   place // the new text
	mute   place // in the request: false where there is no text
	final  place // set in the last message
	total  place // the number of all output tokens so far
	once   place // set in the first message only
	whole  place // in the last message: all ids of the output
	stop   place // in the request: token ids that end the output
	// allowed are the fields that a request may have besides its key, its prompt and its bound: those that mean the same
	// for the rest of the output. Others keep the request from going on elsewhere: a seed, several outputs, structured
	// output, stop strings, a least number of tokens, penalties of the output alone, log probabilities of the prompt.
	allowed place
	one     place // fields that may be 1
}

// at is the place of a path of the data here, which is tested.
func at(p dialect.Path) place {
	alts, _ := parsePath(p)
	return place{alts: alts}
}

// outputForms are by the first of a built-in dialect's methods. A message of sglang.runtime.v1 has new ids or all, by
// flags of the server: it has no form.
var outputForms = sync.OnceValue(func() map[string]*outputForm {
	return map[string]*outputForm{
		"/vllm.Generate/Generate": {
			tokens: at("2.4"), text: at("2.2"), mute: at("9.4"), final: at("2.8"), total: at("2.8.1"), once: at("1"),
			stop: at("8.3"), one: at("6.1"),
			allowed: at("5|6.2|6.3|6.4|7.3|7.4|7.5|8.6|9.4|9.5|9.6|9.7|10.1|12"),
		},
		"/vllm.grpc.engine.VllmEngine/Generate": {
			tokens: at("1.1"), final: at("2"), stop: at("4.11"), one: at("4.15"),
			allowed: at("2.1|4.1|4.2|4.3|4.4|4.7|4.12|4.13|4.14|4.22|4.26|5"),
		},
		"/sglang.grpc.scheduler.SglangScheduler/Generate": {
			tokens: at("2.1"), final: at("3"), total: at("2.3|3.4"), stop: at("4.10"), one: at("4.7|4.17"),
			allowed: at("2.1|4.1|4.2|4.3|4.4|4.11|4.12|4.19|4.20|4.21|4.22|12|13|17"),
		},
		"/trtllm.TrtllmService/Generate": {
			tokens: at("2.1"), final: at("3"), total: at("2.4|3.6"), whole: at("3.1"), stop: at("22"),
			one:     at("3.1|3.2|3.12"),
			allowed: at("2.1|3.3|3.4|3.9|3.18|4.5|6|20|23|25|26|27"),
		},
	}
})

// An outputRule is a form, and what may be set in the messages of a method that has it.
type outputRule struct {
	*outputForm
	request fieldSet // what a request may have that goes on elsewhere
}

// A fieldSet is what the fields of a message may be.
type fieldSet map[protoreflect.FieldNumber]allowance

// An allowance is what a field may be.
type allowance struct {
	leave
	inner fieldSet // of leave inside
}

// leave is what a field may be; none for others.
type leave int

const (
	inside leave = iota + 1 // a message, of which some fields are in the set
	one                     // 1
	anything
)

// add adds the fields at places.
func (f fieldSet) add(as leave, places ...*place) {
	for _, p := range places {
		for _, alt := range p.alts {
			in, end := f, len(alt)-1
			for _, st := range alt[:end] {
				a := in[st.num]
				if a.inner == nil {
					a = allowance{max(a.leave, inside), make(fieldSet)}
					in[st.num] = a
				}
				in = a.inner
			}
			in[alt[end].num] = allowance{as, in[alt[end].num].inner}
		}
	}
}

// newOutputRule returns that of a method with a form.
func (m *Method) newOutputRule(f *outputForm) *outputRule {
	o := &outputRule{outputForm: f, request: make(fieldSet)}
	o.request.add(one, &f.one)
	o.request.add(anything, &f.allowed, &f.stop, &f.mute, &m.id, &m.session, &m.model, &m.adapter, &m.salt, &m.tokens,
		&m.maxTokens, &m.media)
	return o
}

// Resumes reports whether the method has streams that go on at another replica.
func (m *Method) Resumes() bool { return m.output != nil }

// An Output is what a stream has brought so far, so that another replica can go on with it. It is not safe for
// concurrent use.
type Output struct {
	method  *Method
	ends    *Ends
	request proto.Message // a copy of the caller's
	bound   int           // of output tokens
	ids     []uint32      // that the application has
	before  int           // of those, the ones in the prompt of the attempt under way
	again   bool          // the attempt repeats the last of them
	moved   bool          // the attempt under way is not the first
	text    bool          // messages have text
	held    bool          // text of the last ids is held back
	ended   bool          // the last message has come
	lost    bool          // the messages do not have what another attempt needs
}

// maxOutput bounds the ids that are kept of an output.
const maxOutput = 1 << 17

// Output begins the output of a request. It is nil for one that cannot go on elsewhere, and for one larger than a limit
// in bytes. The size is the most that it keeps.
func (m *Method) Output(request any, limit int, ends *Ends) (o *Output, size int) {
	defer harmless()
	msg, typed := request.(proto.Message)
	if m.output == nil || !typed {
		return nil, 0
	}
	bound, size := m.MaxTokens(request), proto.Size(msg)
	in, fd := m.tokens.alts[0].find(msg.ProtoReflect())
	if in == nil || bound == 0 || bound > maxOutput || size > limit || !m.output.request.allows(msg.ProtoReflect()) {
		return nil, 0
	}
	o = &Output{method: m, ends: ends, request: proto.Clone(msg), bound: bound, text: len(m.output.text.alts) > 0}
	if in, fd := m.output.mute.find(msg.ProtoReflect()); in != nil && !in.Get(fd).Bool() {
		o.text = false
	}
	return o, size + 4*(in.Get(fd).List().Len()+bound)
}

// allows reports whether all that is set in a request may be.
func (f fieldSet) allows(m protoreflect.Message) bool {
	ok := len(m.GetUnknown()) == 0
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		single := !fd.IsList() && !fd.IsMap()
		fraction := fd.Kind() == protoreflect.FloatKind || fd.Kind() == protoreflect.DoubleKind
		switch may := f[fd.Number()]; {
		case may.leave == anything, may.leave == one && v.String() == "1":
		case may.leave == inside && single && fd.Message() != nil:
			ok = ok && may.inner.allows(v.Message())
		case single && fraction && v.Float() == 0: // such as a penalty that is off
		default:
			ok = false
		}
		return ok
	})
	return ok
}

// Read takes in a message of the stream. It changes what holds for the attempt to what holds for the whole output.
// deliver is false for a message that the application has already, and useless true where the output is of no use any
// more.
func (o *Output) Read(msg any) (deliver, useless bool) {
	defer func() {
		if recover() != nil { // foreign code, as in harmless
			deliver, useless = true, true
		}
	}()
	typed, ok := msg.(proto.Message)
	if !ok {
		return true, true
	}
	m, p := typed.ProtoReflect(), o.method.output
	ids := p.tokens.ids(m)
	final, _ := p.final.find(m)
	if o.moved {
		if o.whole(typed); proto.Size(typed) == 0 {
			return false, false
		}
	}
	if o.ended = o.ended || final != nil; o.ended && len(ids) == 0 && len(o.ids) > 0 && len(o.ids) < o.bound {
		o.ends.add(o.ids[len(o.ids)-1])
	}
	if o.again && !o.ended {
		return false, false
	}
	o.ids = append(o.ids, ids...)
	if o.ended {
		return true, false
	}
	if len(ids) > 0 && o.text {
		o.held = !wholeText(p.text.string(m))
	}
	o.lost = o.lost || len(o.ids) > o.bound || !o.counts(m, len(ids))
	return true, o.lost && !o.moved
}

// counts reports whether the counts of output tokens in a message are those of its ids, and of all.
func (o *Output) counts(m protoreflect.Message, n int) bool {
	if in, fd := o.method.output.total.find(m); in != nil && integer(fd, in.Get(fd)) != int64(len(o.ids)) {
		return false
	}
	s := source{message: message{typed: m}}
	delta := o.method.usageDelta.count(&s)
	return delta < 0 || delta == n
}

// whole makes a message of another attempt than the first one of the whole stream: the counts are those of the caller's
// prompt and of all output.
func (o *Output) whole(msg proto.Message) {
	m, p, prompt := msg.ProtoReflect(), o.method.output, int64(math.MaxInt32)
	p.once.remove(m)
	patch := o.method.usagePrompt.renumber(nil, m, func(n int64) int64 {
		prompt = n - int64(o.before)
		return prompt
	})
	patch = o.method.usageCached.renumber(patch, m, func(n int64) int64 { return min(n, prompt) })
	patch = p.total.renumber(patch, m, func(n int64) int64 { return n + int64(o.before) })
	if in, fd := p.whole.find(m); in != nil {
		ids := o.ids
		if !o.again {
			ids = slices.Concat(o.ids[:o.before], idsOf(in, fd))
		}
		in.Clear(fd)
		patch = p.whole.numbers(patch, ids)
	}
	_ = merge.Unmarshal(patch, msg) // it is encoded here
}

// merge puts a patch into a message.
var merge = proto.UnmarshalOptions{Merge: true, AllowPartial: true}

// Ended reports whether the stream has had its last message.
func (o *Output) Ended() bool { return o.ended }

// Len is the number of output tokens that the application has.
func (o *Output) Len() int { return len(o.ids) }

// Next returns the request of another attempt: the caller's, with the output behind its prompt and the bound lowered.
// It is nil where the output cannot go on: text is held back, or the last id may be the end of the output. Where only
// the last message is missing the attempt repeats the last token.
func (o *Output) Next() proto.Message {
	n, p := len(o.ids), o.method.output
	repeats := n == o.bound
	switch {
	case o.ended, o.lost, o.held, repeats && slices.Equal(p.tokens.target()[:1], p.final.target()[:1]):
		return nil
	case repeats:
		n--
	case n > 0 && (o.ends.has(o.ids[n-1]) || o.stops(o.ids[n-1])):
		return nil
	}
	next := proto.Clone(o.request)
	patch := o.method.tokens.numbers(o.method.maxTokens.number(nil, int64(o.bound-n)), o.ids[:n])
	if merge.Unmarshal(patch, next) != nil {
		return nil
	}
	o.before, o.again, o.moved = n, repeats, true
	return next
}

// stops reports whether the request names an id as an end.
func (o *Output) stops(id uint32) bool {
	return slices.Contains(o.method.output.stop.ids(o.request.ProtoReflect()), id)
}

// Ends are the last ids that outputs ended with before their bound, as the end-of-sequence token of a model: where the
// last message comes apart from the last id, a stream that breaks between them is complete. Safe for concurrent use.
type Ends struct {
	mu  sync.Mutex // guards ids
	ids []uint32   // at most maxEnds, the latest last
}

const maxEnds = 8

func (e *Ends) add(id uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Contains(e.ids, id) {
		e.ids = append(e.ids[max(len(e.ids)+1-maxEnds, 0):], id)
	}
}

func (e *Ends) has(id uint32) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Contains(e.ids, id)
}

// find returns the message that has the field which a path leads to, and the field; nil where it is not set.
func (p path) find(m protoreflect.Message) (in protoreflect.Message, fd protoreflect.FieldDescriptor) {
	for i := range p {
		if fd, _ = p[i].in(m.Descriptor()); fd == nil || !m.Has(fd) {
			return nil, nil
		}
		if i < len(p)-1 {
			m = m.Get(fd).Message()
		}
	}
	return m, fd
}

// find is [path.find] for the first alternative that leads to something.
func (p *place) find(m protoreflect.Message) (in protoreflect.Message, fd protoreflect.FieldDescriptor) {
	for i := 0; in == nil && i < len(p.alts); i++ {
		in, fd = p.alts[i].find(m)
	}
	return in, fd
}

// ids returns the integers at a place of a message, none where it has none.
func (p *place) ids(m protoreflect.Message) []uint32 {
	in, fd := p.find(m)
	if in == nil {
		return nil
	}
	return idsOf(in, fd)
}

// string returns the text at a place of a message, "" where it has none.
func (p *place) string(m protoreflect.Message) string {
	in, fd := p.find(m)
	if in == nil {
		return ""
	}
	return in.Get(fd).String()
}

// wholeText reports whether there is a text, and no more tokens complete its last character.
func wholeText(s string) bool { return s != "" && !strings.HasSuffix(s, "\uFFFD") }

// remove clears the fields at a place.
func (p *place) remove(m protoreflect.Message) {
	for _, alt := range p.alts {
		if in, fd := alt.find(m); in != nil {
			in.Clear(fd)
		}
	}
}

// renumber appends to a patch what the numbers at a place of a message change to.
func (p *place) renumber(patch []byte, m protoreflect.Message, to func(now int64) int64) []byte {
	for i, alt := range p.alts {
		if in, fd := alt.find(m); in != nil {
			patch = (&place{alts: p.alts[i:]}).number(patch, to(integer(fd, in.Get(fd))))
		}
	}
	return patch
}
