package requestkey

import (
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
	"unsafe"

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

// open returns a message of any shape as a source: an empty one for what is none. One of gogo's generator is read in
// its encoded form, since protoreflect does not know all that it makes, unless fields are wanted by name. Of several
// buffers it has the first alone where only what costs little is wanted.
func open(msg any, named, cheap bool) source {
	m := source{cheap: cheap}
	switch b := msg.(type) {
	case []byte:
		m.raw = b
	case *[]byte:
		m.raw = *b
	case mem.Buffer:
		m.raw = b.ReadOnlyData()
	case *mem.BufferSlice:
		m.raw = joined(*b, cheap)
	case mem.BufferSlice:
		m.raw = joined(b, cheap)
	default:
		if _, generated := msg.(proto.Message); generated || named {
			m.typed = reflected(msg)
		}
		if m.typed != nil {
			break
		}
		switch b := msg.(type) {
		case interface{ Bytes() []byte }:
			m.raw = b.Bytes()
		case interface{ Marshal() ([]byte, error) }:
			m.raw, _ = b.Marshal()
		default: // one of the first API
			m.typed = reflected(msg)
		}
	}
	return m
}

// joined returns what is in buffers, or in the first one.
func joined(b mem.BufferSlice, first bool) []byte {
	if len(b) == 1 || first && len(b) > 0 {
		return b[0].ReadOnlyData()
	}
	return b.Materialize()
}

// reflected returns a message of either API for reflection; nil for what is none, and for one at which protoreflect
// panics: one of another generator, or one that only has the methods.
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
	st, here, visit := &p[0], want, func(v value) { n++; take(v) }
	if len(p) > 1 {
		here, visit = kindMessage|kindEncoded, func(v value) {
			found := s.walk(v.message(), p[1:], want, take)
			if v.listed && want&kindEnd != 0 {
				take(value{kind: kindEnd, num: int64(found), text: v.text, typed: v.typed})
				found = 1
			}
			n += found
		}
	}
	if m.typed == nil {
		wireField(m.raw, st, here, visit)
		return n
	}
	fd, holds := st.in(m.typed.Descriptor())
	if unknown := m.typed.GetUnknown(); fd == nil && st.num != 0 && len(unknown) > 0 {
		wireField(unknown, st, here, visit) // the type may be older than what it was decoded from
		return n
	}
	if fd == nil || here&kinds[holds.Kind()] == 0 || !m.typed.Has(fd) {
		return 0
	}
	switch {
	case st.key != "":
		if x := m.typed.Get(fd).Map().Get(protoreflect.ValueOfString(st.key).MapKey()); x.IsValid() {
			visit(valueOf(holds, x))
		}
	case fd.IsList() && here&kindIDs != 0:
		visit(value{kind: kindIDs, ids: idsOf(m.typed, fd)})
	case fd.IsList():
		if s.listOf != m.typed || s.listFD != fd {
			s.list, s.listOf, s.listFD = m.typed.Get(fd).List(), m.typed, fd
		}
		for l, i := s.list, 0; i < l.Len(); i++ {
			v := valueOf(fd, l.Get(i))
			v.listed = true
			visit(v)
		}
	default:
		visit(valueOf(fd, m.typed.Get(fd)))
	}
	return n
}

// in returns the field of a step and what it, or each place of its list or map, holds; nil where the type has no field
// that fits.
func (st *step) in(d protoreflect.MessageDescriptor) (fd, holds protoreflect.FieldDescriptor) {
	if fd = d.Fields().ByNumber(st.num); st.name != "" {
		fd = d.Fields().ByName(protoreflect.Name(st.name))
	}
	if fd == nil || fd.IsMap() != (st.key != "") || st.key != "" && fd.MapKey().Kind() != protoreflect.StringKind {
		return nil, nil
	}
	if st.key != "" {
		return fd, fd.MapValue()
	}
	return fd, fd
}

// wireField calls take for each value of a field of an encoded message that is of the wanted kinds.
func wireField(b []byte, st *step, want kind, take func(value)) {
	if st.num == 0 { // it is wanted by its name
		return
	}
	protofield.Each(b, func(f protofield.Field) {
		switch {
		case f.Number != st.num:
		case f.Type == protowire.VarintType && st.key == "" && want&kindNumber != 0:
			take(value{kind: kindNumber, num: int64(f.Value), listed: st.list})
		case f.Type != protowire.BytesType || want&kindEncoded == 0:
		case st.key == "":
			take(value{kind: kindEncoded, text: alias(f.Bytes), listed: st.list})
		default: // an entry of a map
			key := ""
			wireField(f.Bytes, &step{num: 1}, kindEncoded, func(v value) { key = v.text })
			if key == st.key {
				wireField(f.Bytes, &step{num: 2}, want, take)
			}
		}
	})
}

// text returns the text in a field.
func (s *source) text(m message, num protowire.Number) (text string) {
	s.walk(m, path{{num: num}}, kindText|kindBytes|kindEncoded, func(v value) { text = v.text })
	return text
}

// A kind is what a value is, or a set of kinds.
type kind uint8

const (
	kindText    kind = 1 << iota
	kindBytes        // of a decoded message, in memory that the application may write to
	kindEncoded      // of an encoded message: text, packed integers or a message
	kindNumber
	kindIDs // a whole list of integers
	kindMessage
	kindEnd // of a message in a list on the way; the number is that of the values in it

	scalar = kindText | kindBytes | kindEncoded | kindNumber
)

// kinds are those of the fields that can be read: no truth values and no fractions.
var kinds = [...]kind{
	protoreflect.StringKind: kindText, protoreflect.BytesKind: kindBytes,
	protoreflect.MessageKind: kindMessage, protoreflect.GroupKind: kindMessage, protoreflect.EnumKind: kindNumber,
	protoreflect.Int32Kind: kindNumber, protoreflect.Sint32Kind: kindNumber, protoreflect.Sfixed32Kind: kindNumber,
	protoreflect.Int64Kind: kindNumber, protoreflect.Sint64Kind: kindNumber, protoreflect.Sfixed64Kind: kindNumber,
	protoreflect.Uint32Kind: kindNumber, protoreflect.Fixed32Kind: kindNumber,
	protoreflect.Uint64Kind: kindNumber, protoreflect.Fixed64Kind: kindNumber,
}

// A value is what a path leads to. It aliases the message.
type value struct {
	kind   kind
	listed bool // it is one of a list
	num    int64
	text   string // and what is encoded
	ids    []uint32
	typed  protoreflect.Message
}

// valueOf returns the value of a field of a decoded message.
func valueOf(fd protoreflect.FieldDescriptor, x protoreflect.Value) value {
	v := value{kind: kinds[fd.Kind()]}
	switch v.kind {
	case kindText:
		v.text = x.String()
	case kindBytes:
		v.text = alias(x.Bytes())
	case kindMessage:
		v.typed = x.Message()
	case kindNumber:
		v.num = integer(fd, x)
	}
	return v
}

// integer returns the value of a field that holds one.
func integer(fd protoreflect.FieldDescriptor, x protoreflect.Value) int64 {
	switch fd.Kind() {
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		return int64(x.Uint())
	case protoreflect.EnumKind:
		return int64(x.Enum())
	}
	return x.Int()
}

// message returns a value that is a message.
func (v *value) message() message { return message{typed: v.typed, raw: bytesOf(v.text)} }

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

// bytesOf returns s as bytes that share its memory and must not be changed.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// printable reports whether a session is text: what a field holds that once was a message is not.
func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' })
}

// count returns a value that is a number of tokens, or a text of one; -1 for any other.
func (v *value) count() int {
	switch {
	case v.kind != kindNumber:
		return parseCount(v.text)
	case v.num < 0 || v.num > math.MaxInt32:
		return -1
	}
	return int(v.num)
}

func parseCount(s string) int {
	if s == "" { // of which strconv would make an error
		return -1
	}
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return -1
	}
	return int(n)
}

// appendIDs appends token ids. The first slice of them is not copied.
func (v *value) appendIDs(dst []uint32) []uint32 {
	switch {
	case v.kind == kindNumber:
		return append(dst, uint32(v.num))
	case v.kind == kindIDs && len(dst) == 0:
		return slices.Clip(v.ids)
	case v.kind == kindIDs:
		return append(dst, v.ids...)
	}
	return appendPacked(dst, bytesOf(v.text))
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

// idFields has of each Go type of messages the places in its struct of the slices of 32-bit integers, by field number:
// reflect.Type → map[protoreflect.FieldNumber]int.
var idFields sync.Map

// idFieldsOf finds them.
func idFieldsOf(t reflect.Type) any {
	found := map[protoreflect.FieldNumber]int{}
	if t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct {
		for i := range t.Elem().NumField() {
			f := t.Elem().Field(i)
			is32 := f.Type == reflect.TypeFor[[]uint32]() || f.Type == reflect.TypeFor[[]int32]()
			if n := fieldNumber(f); is32 && f.IsExported() && n > 0 {
				found[n] = i
			}
		}
	}
	known, _ := idFields.LoadOrStore(t, found)
	return known
}

// fieldNumber returns the number of a field in the struct of a generated message, 0 if it has none.
func fieldNumber(f reflect.StructField) protoreflect.FieldNumber {
	_, rest, _ := strings.Cut(f.Tag.Get("protobuf"), ",") // "varint,1,rep,packed,name=ids,proto3"
	number, _, _ := strings.Cut(rest, ",")
	n, _ := strconv.Atoi(number)
	return protoreflect.FieldNumber(n)
}

// idsOf returns a list of integers: the slice of a generated message itself where its Go type has one of 32 bits.
func idsOf(m protoreflect.Message, fd protoreflect.FieldDescriptor) []uint32 {
	v := reflect.ValueOf(m.Interface())
	known, ok := idFields.Load(v.Type())
	if !ok {
		known = idFieldsOf(v.Type())
	}
	if i, ok := known.(map[protoreflect.FieldNumber]int)[fd.Number()]; ok {
		s := v.Elem().Field(i)
		return unsafe.Slice((*uint32)(s.UnsafePointer()), s.Len())
	}
	l := m.Get(fd).List()
	ids := make([]uint32, l.Len())
	for i := range ids {
		ids[i] = uint32(integer(fd, l.Get(i)))
	}
	return ids
}
