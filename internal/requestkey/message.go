package requestkey

import (
	"slices"
	"strconv"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A message is one in either shape: decoded, or encoded.
type message struct {
	typed protoreflect.Message // nil = encoded
	raw   []byte
}

// messageOf returns a message of any shape: an empty one for what is none. One of gogo's generator is read in its
// encoded form, since protoreflect does not know all that it makes, unless fields are wanted by name. Of several
// buffers it has the first alone unless the whole is wanted.
func messageOf(msg any, named, whole bool) message {
	if b, ok := encoded(msg, whole); ok {
		return message{raw: b}
	}
	_, generated := msg.(proto.Message)
	if !generated && !named {
		if b, ok := selfEncoded(msg); ok {
			return message{raw: b}
		}
	}
	if m := reflected(msg); m != nil {
		return message{typed: m}
	}
	b, _ := selfEncoded(msg)
	return message{raw: b}
}

// encoded returns the bytes of an encoded message.
func encoded(msg any, whole bool) ([]byte, bool) {
	switch b := msg.(type) {
	case []byte:
		return b, true
	case *[]byte:
		return *b, true
	case mem.Buffer:
		return b.ReadOnlyData(), true
	case *mem.BufferSlice:
		return encoded(*b, whole)
	case mem.BufferSlice:
		switch {
		case len(b) == 0:
			return nil, true
		case len(b) == 1 || !whole:
			return b[0].ReadOnlyData(), true
		}
		return b.Materialize(), true
	}
	return nil, false
}

// selfEncoded returns the bytes of a message that holds its encoded form, or encodes itself as gogo's do.
func selfEncoded(msg any) ([]byte, bool) {
	switch m := msg.(type) {
	case interface{ Bytes() []byte }:
		return m.Bytes(), true
	case interface{ Marshal() ([]byte, error) }:
		b, err := m.Marshal()
		return b, err == nil
	}
	return nil, false
}

// reflected returns a protobuf message of either API for reflection; nil where msg is none, or one that protoreflect
// panics at: some that are not of its own generator.
func reflected(msg any) (m protoreflect.Message) {
	defer harmless()
	v2, ok := msg.(proto.Message)
	if v1, old := msg.(protoadapt.MessageV1); old && !ok {
		v2, ok = protoadapt.MessageV2Of(v1), true
	}
	if ok {
		r := v2.ProtoReflect()
		r.Descriptor()
		m = r
	}
	return m
}

// harmless ends a panic. Messages are foreign code: a typed nil, a buffer that
// was freed, a Bytes method that does not expect to be called.
func harmless() { _ = recover() }

// populated returns the number of fields that are set.
func (m message) populated() (n int) {
	if m.typed != nil {
		m.typed.Range(func(protoreflect.FieldDescriptor, protoreflect.Value) bool { n++; return true })
		return n + min(len(m.typed.GetUnknown()), 1)
	}
	for f, b := nextField(m.raw); f.num != 0; f, b = nextField(b) {
		n++
	}
	return n
}

// encoded returns the message in wire format, the same for equal messages.
func (m message) encoded() []byte {
	if m.typed == nil {
		return m.raw
	}
	b, _ := proto.MarshalOptions{Deterministic: true, AllowPartial: true}.Marshal(m.typed.Interface())
	return b
}

// A value is what a path leads to. It aliases the message.
type value struct {
	kind kind
	text string // of packed integers their encoding
	num  int64
	ids  []uint32
	msg  message

	borrowed bool // the text is in memory that the application may write to: that of bytes
	begins   bool // the element does
}

type kind uint8

const (
	kindText kind = iota
	kindNumber
	kindIDs
	kindMessage
	kindElement // a message in a list on the way begins or ends, with the values of it between
)

// string returns a value as text; "" for a number that is 0, and for a message.
func (v *value) string() string {
	switch {
	case v.kind == kindNumber && v.num != 0:
		return strconv.FormatInt(v.num, 10)
	case v.kind == kindIDs && len(v.ids) > 0:
		return strconv.FormatUint(uint64(v.ids[0]), 10)
	}
	return v.text
}

// fills reports whether a value is a reason not to look at further alternatives.
func (v *value) fills(sl slot) bool {
	switch {
	case v.kind == kindElement:
		return false
	case sl == slotSession:
		return v.string() != "" && printable(v.text)
	}
	return v.text != "" || v.num != 0 || len(v.ids) > 0 || v.kind == kindMessage || len(v.msg.raw) > 0
}

// A source is a message that fields are read from.
type source struct {
	message
	f     *fields
	whole bool   // tensors are wanted
	nums  uint64 // of an encoded message: a bit for each field number modulo 64 that it has

	// The last list that was read: protoreflect allocates one each time it is asked.
	list   protoreflect.List
	listOf protoreflect.Message
	listFD protoreflect.FieldDescriptor
}

func (f *fields) in(m message) source {
	s := source{message: m, f: f}
	for x, b := nextField(m.raw); x.num != 0; x, b = nextField(b) {
		s.nums |= 1 << (x.num % 64)
	}
	return s
}

// each calls take for what the best alternative of a slot's path that has something leads to, or else the last.
func (s *source) each(sl slot, take func(value)) {
	last := len(s.f.paths[sl]) - 1
	for alt := range last {
		found := false
		s.alternative(sl, alt, func(v value) { found = found || v.fills(sl) })
		if found {
			s.alternative(sl, alt, take)
			return
		}
	}
	if last >= 0 {
		s.alternative(sl, last, take)
	}
}

// alternative calls take for what an alternative of a slot's path leads to.
func (s *source) alternative(sl slot, alt int, take func(value)) {
	p := s.f.paths[sl][alt]
	switch {
	case !p.tensor():
		s.field(sl, alt, take)
	case s.whole:
		s.tensor(p[0].key, take)
	}
}

// field does so for a path of fields. In an encoded message the last value of a field that is no list counts.
func (s *source) field(sl slot, alt int, take func(value)) {
	p := s.f.paths[sl][alt]
	switch {
	case s.typed != nil:
		s.walk(sl, p, s.typed, take)
	case s.nums&(1<<(p[0].num%64)) == 0:
	case sl.repeated() || p.hasList():
		walkRaw(s.raw, p[0].num, p, false, take)
	default:
		var last value
		found := false
		walkRaw(s.raw, p[0].num, p, false, func(v value) { last, found = v, true })
		if found {
			take(last)
		}
	}
}

// walk follows a path in a decoded message.
func (s *source) walk(sl slot, p path, m protoreflect.Message, take func(value)) {
	fd, last := p[0].in(m.Descriptor()), len(p) == 1
	if fd == nil || !m.Has(fd) {
		return
	}
	holds := fd
	if fd.IsMap() {
		holds = fd.MapValue()
	}
	if last && !sl.fits(holds) || !last && holds.Message() == nil {
		return
	}
	one := func(val protoreflect.Value, listed bool) {
		if last {
			take(leaf(holds, val))
			return
		}
		if listed {
			take(value{kind: kindElement, begins: true})
		}
		s.walk(sl, p[1:], val.Message(), take)
		if listed {
			take(value{kind: kindElement, msg: message{typed: val.Message()}})
		}
	}
	switch {
	case fd.IsMap():
		if val := m.Get(fd).Map().Get(protoreflect.ValueOfString(p[0].key).MapKey()); val.IsValid() {
			one(val, false)
		}
	case fd.IsList() && sl == slotTokens && last:
		take(value{kind: kindIDs, ids: idsOf(m, fd)})
	case fd.IsList():
		if s.listOf != m || s.listFD != fd {
			s.list, s.listOf, s.listFD = m.Get(fd).List(), m, fd
		}
		for l, i := s.list, 0; i < l.Len(); i++ {
			one(l.Get(i), true)
		}
	default:
		one(m.Get(fd), p[0].list)
	}
}

// leaf returns the value of a field that a path ends in.
func leaf(fd protoreflect.FieldDescriptor, val protoreflect.Value) value {
	switch {
	case fd.Message() != nil:
		return value{kind: kindMessage, msg: message{typed: val.Message()}}
	case fd.Kind() == protoreflect.BytesKind:
		return value{text: alias(val.Bytes()), borrowed: true}
	case fd.Kind() == protoreflect.StringKind:
		return value{text: val.String()}
	}
	return value{kind: kindNumber, num: integer(fd, val)}
}

// A wireField is one field of an encoded message. Of those that are neither varints nor length-delimited it has no
// value.
type wireField struct {
	num    protowire.Number // 0 = the message ends here, or is broken
	typ    protowire.Type
	varint uint64
	data   []byte
}

// nextField reads the field that b begins with.
func nextField(b []byte) (f wireField, rest []byte) {
	num, typ, n := protowire.ConsumeTag(b)
	if n < 0 {
		return wireField{}, nil
	}
	f, b = wireField{num: num, typ: typ}, b[n:]
	switch typ {
	case protowire.VarintType:
		f.varint, n = protowire.ConsumeVarint(b)
	case protowire.BytesType:
		f.data, n = protowire.ConsumeBytes(b)
	default:
		n = protowire.ConsumeFieldValue(num, typ, b)
	}
	if n < 0 {
		return wireField{}, nil
	}
	return f, b[n:]
}

// walkRaw follows a path in an encoded message, as far as it can be read. The path's first step is the field num;
// inEntry is true for the value of a map whose key was found.
func walkRaw(b []byte, num protowire.Number, p path, inEntry bool, take func(value)) {
	keyed := p[0].key != "" && !inEntry
	for f, b := nextField(b); f.num != 0; f, b = nextField(b) {
		switch {
		case f.num != num:
		case f.typ == protowire.VarintType && len(p) == 1 && !keyed:
			take(value{kind: kindNumber, num: int64(f.varint)})
		case f.typ != protowire.BytesType:
		case keyed && entryKey(f.data) == p[0].key:
			walkRaw(f.data, 2, p, true, take)
		case keyed:
		case len(p) == 1:
			take(value{text: alias(f.data), msg: message{raw: f.data}, borrowed: true})
		default:
			if p[0].list {
				take(value{kind: kindElement, begins: true})
			}
			walkRaw(f.data, p[1].num, p[1:], false, take)
			if p[0].list {
				take(value{kind: kindElement, msg: message{raw: f.data}})
			}
		}
	}
}

// entryKey returns the key of an encoded entry of a map.
func entryKey(b []byte) (key string) {
	for f, b := nextField(b); f.num != 0; f, b = nextField(b) {
		if f.num == 1 {
			key = alias(f.data)
		}
	}
	return key
}

// appendPacked decodes packed varints, as many as are whole. Negative int32 ids
// come as 64 bits and are cut to 32.
func appendPacked(dst []uint32, b []byte) []uint32 {
	n := 0
	for _, c := range b {
		n += int(c>>7) ^ 1
	}
	dst = slices.Grow(dst, n)
	for len(b) > 0 {
		x, k := protowire.ConsumeVarint(b)
		if k < 0 {
			break
		}
		dst, b = append(dst, uint32(x)), b[k:]
	}
	return dst
}
