package requestkey

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/warmpath/warmpath/balancer/dialect"
)

// An outputForm is where the streams of an engine have their output, for those that can go on at another replica: each
// message but the last has the new token ids alone.
type outputForm struct {
	tokens string // the new token ids of a message
	text   string // the new text
	mute   string // in the request: false where there is no text
	final  string // set in the last message
	total  string // the number of all output tokens so far
	once   string // set in the first message only
	whole  string // in the last message: all ids of the output
	stop   string // in the request: token ids that end the output
	all    string // the ids of an output that comes in one message
	anew   string // in the request: set where nothing cached is to be used
	// temperature is in the request: 0 makes the output greedy. sampled: so is not an output without it.
	temperature string
	sampled     bool
	// allowed are the fields that a request may have besides its key, its prompt and its bound: those that mean the same
	// for the rest of the output. Others keep the request from going on elsewhere: a seed, several outputs, structured
	// output, stop strings, a least number of tokens, penalties of the output alone, log probabilities of the prompt.
	allowed string
	one     string // fields that may be 1
	shapes  string // fields that a turn may have as well: they shape the output, and not what is computed of it
}

// outputForms are by the first of a built-in dialect's methods. A message of sglang.runtime.v1 has new ids or all, by
// flags of the server: it has no form.
var outputForms = map[string]*outputForm{
	"/vllm.Generate/Generate": {
		tokens: "2.4", text: "2.2", mute: "9.4", final: "2.8", total: "2.8.1", once: "1", stop: "8.3", one: "6.1", anew: "10.1",
		temperature: "5",
		allowed:     "5|6.2|6.3|6.4|7.3|7.4|7.5|8.6|9.4|9.5|9.6|9.7|10.1|12", shapes: "6.5|7.1|7.2|7.6|8.2|8.4",
	},
	"/vllm.grpc.engine.VllmEngine/Generate": {
		tokens: "1.1", final: "2", stop: "4.11", one: "4.15", all: "2.1",
		temperature: "4.1", sampled: true,
		allowed: "2.1|4.1|4.2|4.3|4.4|4.7|4.12|4.13|4.14|4.22|4.26|5",
		shapes:  "4.5|4.6|4.9|4.10|4.16|4.17|4.18|4.19|4.20|4.21",
	},
	"/sglang.grpc.scheduler.SglangScheduler/Generate": {
		tokens: "2.1", final: "3", total: "2.3|3.4", stop: "4.10", one: "4.7|4.17",
		allowed: "2.1|4.1|4.2|4.3|4.4|4.11|4.12|4.19|4.20|4.21|4.22|12|13|17",
	},
	"/trtllm.TrtllmService/Generate": {
		tokens: "2.1", final: "3", total: "2.4|3.6", whole: "3.1", stop: "22", one: "3.1|3.2|3.12",
		allowed: "2.1|3.3|3.4|3.9|3.18|4.5|6|20|23|25|26|27",
	},
}

// outputPlaces are a form that is compiled.
type outputPlaces struct {
	tokens, text, mute, final, total, once, whole, stop, all, anew, temperature []path

	request, turn fieldSet // what a request may have that goes on elsewhere, and one whose turn is kept
	message       fieldSet // what a message may have whose token is another message's as well
}

// A fieldSet is fields of a request: true = with any value, false = only with 1.
type fieldSet map[string]bool

// compileOutput sets the places of the method's form.
func (m *Method) compileOutput() {
	f := m.form
	known := func(p string) (alts []path) {
		alts, _ = parsePath(dialect.Path(p)) // the data is tested
		return alts
	}
	o := &outputPlaces{
		tokens: known(f.tokens), text: known(f.text), mute: known(f.mute), final: known(f.final), total: known(f.total),
		once: known(f.once), whole: known(f.whole), stop: known(f.stop), all: known(f.all), anew: known(f.anew),
		temperature: known(f.temperature), request: make(fieldSet),
	}
	for _, field := range strings.Split(f.one, "|") {
		o.request[field] = false
	}
	d := &m.dialect
	keys := []string{f.allowed, f.stop, f.mute, string(d.RequestID), string(d.Session), string(d.Model), string(d.Adapter),
		string(d.CacheSalt), string(d.Tokens), string(d.MaxTokens)}
	if d.Media != nil {
		keys = append(keys, string(d.Media.Path))
	}
	for _, field := range strings.Split(strings.Join(keys, "|"), "|") {
		o.request[field] = true
	}
	o.turn = maps.Clone(o.request)
	for _, field := range strings.Split(f.shapes, "|") {
		o.turn[field] = true
	}
	o.message = make(fieldSet)
	u := &d.Usage
	keys = []string{f.tokens, f.text, f.once, string(u.Prompt), string(u.Output), string(u.OutputDelta), string(u.Cached)}
	for _, field := range strings.Split(strings.Join(keys, "|"), "|") {
		o.message[strings.ReplaceAll(field, "[]", "")] = true
	}
	m.output = o
}

// Resumes reports whether some method has streams that go on at another replica.
func (t *Table) Resumes() bool { return t.resumes }

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
	prefill prefillToken  // zero = the first token comes with the others
	lost    bool          // the messages do not have what another attempt needs
}

// maxOutput bounds the ids that are kept of an output.
const maxOutput = 1 << 17

// Output begins the output of a request. It is nil for one that cannot go on elsewhere, and for one larger than a limit
// in bytes. The size is the most that it keeps. split: a prefill leg may have its first token.
func (m *Method) Output(request any, limit int, split bool, ends *Ends) (o *Output, size int) {
	defer harmless()
	msg, typed := request.(proto.Message)
	if m.output == nil || !typed {
		return nil, 0
	}
	if split = split && m.output.greedy(msg, m.form.sampled); !split && !m.dialect.Resume {
		return nil, 0
	}
	bound, size := m.MaxTokens(request), proto.Size(msg)
	in, fd := m.tokens.alts[0].find(msg.ProtoReflect())
	if in == nil || bound == 0 || bound > maxOutput || size > limit || !m.output.request.allows(msg.ProtoReflect(), "") {
		return nil, 0
	}
	o = &Output{method: m, ends: ends, request: proto.Clone(msg), bound: bound, text: len(m.output.text) > 0}
	o.prefill.wanted = split && bound > 1
	if in, fd := first(m.output.mute, msg.ProtoReflect()); in != nil && !in.Get(fd).Bool() {
		o.text = false
	}
	return o, size + 4*(in.Get(fd).List().Len()+bound)
}

// allows reports whether all that is set in a request, or in a message at a place in it, may be.
func (f fieldSet) allows(m protoreflect.Message, at string) bool {
	if len(m.GetUnknown()) > 0 {
		return false
	}
	ok := true
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		field := at + strconv.Itoa(int(fd.Number()))
		number := float64(-1)
		switch k := fd.Kind(); {
		case fd.IsList(), fd.IsMap():
		case k == protoreflect.FloatKind, k == protoreflect.DoubleKind:
			number = v.Float()
		case kinds[k] == kindNumber:
			number = float64(integer(fd, v))
		}
		free, known := f[field]
		switch {
		case free, known && number == 1:
		case fd.Message() != nil && !fd.IsList() && !fd.IsMap() && f.below(field):
			ok = f.allows(v.Message(), field+".")
		case number == 0 && kinds[fd.Kind()] != kindNumber: // such as a penalty that is off
		default:
			ok = false
		}
		return ok
	})
	return ok
}

// below reports whether fields of the message in a field are known.
func (f fieldSet) below(field string) bool {
	for known := range f {
		if strings.HasPrefix(known, field+".") {
			return true
		}
	}
	return false
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
	var ids []uint32
	if in, fd := first(p.tokens, m); in != nil {
		ids = idsOf(in, fd)
	}
	final, _ := first(p.final, m)
	if o.prefill.given {
		return o.repeats(typed, ids, final != nil)
	}
	if o.moved {
		if o.whole(typed); proto.Size(typed) == 0 {
			return false, false
		}
	}
	if o.ended = final != nil; o.ended && len(ids) == 0 && len(o.ids) > 0 && len(o.ids) < o.bound {
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
		in, fd := first(p.text, m)
		o.held = in == nil || strings.HasSuffix(in.Get(fd).String(), "\uFFFD")
	}
	o.lost = o.lost || len(o.ids) > o.bound || !o.counts(m, len(ids))
	return true, o.lost && !o.moved
}

// counts reports whether the counts of output tokens in a message are those of its ids, and of all.
func (o *Output) counts(m protoreflect.Message, n int) bool {
	if in, fd := first(o.method.output.total, m); in != nil && integer(fd, in.Get(fd)) != int64(len(o.ids)) {
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
	remove(m, p.once)
	patch := renumber(nil, m, o.method.usagePrompt.alts, func(n int64) int64 {
		prompt = n - int64(o.before)
		return prompt
	})
	patch = renumber(patch, m, o.method.usageCached.alts, func(n int64) int64 { return min(n, prompt) })
	patch = renumber(patch, m, p.total, func(n int64) int64 { return n + int64(o.before) })
	if in, fd := first(p.whole, m); in != nil {
		ids := o.ids
		if !o.again {
			ids = slices.Concat(o.ids[:o.before], idsOf(in, fd))
		}
		in.Clear(fd)
		patch = (&place{alts: p.whole}).numbers(patch, ids)
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
	case o.lost, o.held, repeats && slices.Equal(p.tokens[0][:1], p.final[0][:1]):
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
	o.before, o.again, o.moved, o.prefill = n, repeats, true, prefillToken{}
	return next
}

// stops reports whether the request names an id as an end.
func (o *Output) stops(id uint32) bool {
	in, fd := first(o.method.output.stop, o.request.ProtoReflect())
	return in != nil && slices.Contains(idsOf(in, fd), id)
}

// Ends are the last ids that outputs ended with before their bound, as the end-of-sequence token of a model: where the
// last message comes apart from the last id, a stream that breaks between them is complete. Safe for concurrent use.
type Ends struct {
	mu  sync.Mutex // guards the fields below
	ids [8]uint32
	n   int
}

func (e *Ends) add(id uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Contains(e.ids[:min(e.n, len(e.ids))], id) {
		e.ids[e.n%len(e.ids)] = id
		e.n++
	}
}

func (e *Ends) has(id uint32) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Contains(e.ids[:min(e.n, len(e.ids))], id)
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

// remove clears the fields that paths lead to.
func remove(m protoreflect.Message, alts []path) {
	for _, alt := range alts {
		if in, fd := alt.find(m); in != nil {
			in.Clear(fd)
		}
	}
}

// renumber appends to a patch what the numbers at paths of a message change to.
func renumber(patch []byte, m protoreflect.Message, alts []path, to func(now int64) int64) []byte {
	for i, alt := range alts {
		if in, fd := alt.find(m); in != nil {
			patch = (&place{alts: alts[i:]}).number(patch, to(integer(fd, in.Get(fd))))
		}
	}
	return patch
}

// first is find for the first of several paths that leads to something.
func first(alts []path, m protoreflect.Message) (in protoreflect.Message, fd protoreflect.FieldDescriptor) {
	for i := 0; in == nil && i < len(alts); i++ {
		in, fd = alts[i].find(m)
	}
	return in, fd
}
