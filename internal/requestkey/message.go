package requestkey

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/warmpath/warmpath/internal/protofield"
)

// A message is one in either shape: decoded, or encoded.
type message struct {
	typed protoreflect.Message // nil = encoded
	raw   []byte
}

// A source is a message that places are read from.
type source struct {
	message
	cheap bool // only what costs little is wanted: no tensors

	// The last list that was read: protoreflect allocates one each time it is asked.
	list   protoreflect.List
	listOf protoreflect.Message
	listFD protoreflect.FieldDescriptor
}

// open returns a message of any shape as a source: an empty one for what is none. One of gogo's generator is read in its
// encoded form, since protoreflect does not know all that it makes, unless fields are wanted by name. Of several
// buffers it has the first alone where only what costs little is wanted.
func open(msg any, named, cheap bool) source {
	m := source{cheap: cheap}
	switch b := msg.(type) {
	case proto.Message:
		m.typed = b.ProtoReflect()
	case []byte:
		m.raw = b
	case *[]byte:
		m.raw = *b
	case mem.Buffer:
		m.raw = b.ReadOnlyData()
	case *mem.BufferSlice:
		return open(*b, named, cheap)
	case mem.BufferSlice:
		switch {
		case len(b) == 1 || cheap && len(b) > 0:
			m.raw = b[0].ReadOnlyData()
		case len(b) > 0:
			m.raw = b.Materialize()
		}
	case interface{ Bytes() []byte }:
		m.raw = b.Bytes()
	default:
		old, _ := msg.(protoadapt.MessageV1)
		gogo, encodes := msg.(interface{ Marshal() ([]byte, error) })
		if named || !encodes {
			m.typed = reflected(old)
		}
		if m.typed == nil && encodes {
			m.raw, _ = gogo.Marshal()
		}
	}
	return m
}

// reflected returns a message of the first API for reflection; nil for nil, and for one of another generator at which
// protoreflect panics.
func reflected(msg protoadapt.MessageV1) (m protoreflect.Message) {
	defer harmless()
	if msg != nil {
		r := protoadapt.MessageV2Of(msg).ProtoReflect()
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
	protofield.Each(m.raw, func(protofield.Field) { n++ })
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

// walk calls take for each value of the wanted kinds that a path leads to, and where kindEnd is wanted also behind each
// message of a list on the way. It returns how many values there are, such a message being one. An encoded message is
// read as far as it can be.
func (s *source) walk(m message, p path, want kind, take func(value)) (n int) {
	if len(p) == 1 {
		s.field(m, &p[0], want, func(v value) { n++; take(v) })
		return n
	}
	s.field(m, &p[0], kindMessage|kindEncoded, func(v value) {
		found := s.walk(v.message(), p[1:], want, take)
		if v.listed && want&kindEnd != 0 {
			take(value{kind: kindEnd, num: int64(found), text: v.text, typed: v.typed})
			found = 1
		}
		n += found
	})
	return n
}

// field calls take for each value of a field that is of the wanted kinds.
func (s *source) field(m message, st *step, want kind, take func(value)) {
	if m.typed == nil {
		wireField(m.raw, st, want, take)
		return
	}
	fd, holds := st.in(m.typed.Descriptor())
	if fd == nil || want&kinds[holds.Kind()] == 0 || !m.typed.Has(fd) {
		return
	}
	switch {
	case st.key != "":
		if x := m.typed.Get(fd).Map().Get(protoreflect.ValueOfString(st.key).MapKey()); x.IsValid() {
			take(valueOf(holds, x))
		}
	case fd.IsList() && want&kindIDs != 0:
		take(value{kind: kindIDs, ids: idsOf(m.typed, fd)})
	case fd.IsList():
		if s.listOf != m.typed || s.listFD != fd {
			s.list, s.listOf, s.listFD = m.typed.Get(fd).List(), m.typed, fd
		}
		for l, i := s.list, 0; i < l.Len(); i++ {
			v := valueOf(fd, l.Get(i))
			v.listed = true
			take(v)
		}
	default:
		take(valueOf(fd, m.typed.Get(fd)))
	}
}

// wireField does so in an encoded message.
func wireField(b []byte, st *step, want kind, take func(value)) {
	protofield.Each(b, func(f protofield.Field) {
		switch {
		case f.Number != st.num:
		case f.Type == protowire.VarintType && st.key == "" && want&kindNumber != 0:
			take(value{kind: kindNumber, num: int64(f.Value), listed: st.list})
		case f.Type != protowire.BytesType || want&kindEncoded == 0:
		case st.key == "":
			take(value{kind: kindEncoded, text: alias(f.Bytes), listed: st.list})
		case wireText(f.Bytes, 1) == st.key: // of an entry of a map
			wireField(f.Bytes, &step{num: 2}, want, take)
		}
	})
}

// wireText returns the text in a field of an encoded message.
func wireText(b []byte, num protowire.Number) (s string) {
	protofield.Each(b, func(f protofield.Field) {
		if f.Number == num {
			s = alias(f.Bytes)
		}
	})
	return s
}

// text returns the text in a field.
func (s *source) text(m message, num protowire.Number) (text string) {
	s.field(m, &step{num: num}, kindText|kindBytes|kindEncoded, func(v value) { text = v.text })
	return text
}
