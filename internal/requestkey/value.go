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

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

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
			tag := strings.Split(f.Tag.Get("protobuf"), ",") // "varint,1,rep,packed,name=ids,proto3"
			is32 := f.Type == reflect.TypeFor[[]uint32]() || f.Type == reflect.TypeFor[[]int32]()
			if is32 && f.IsExported() && len(tag) > 1 {
				n, _ := strconv.Atoi(tag[1])
				found[protoreflect.FieldNumber(n)] = i
			}
		}
	}
	known, _ := idFields.LoadOrStore(t, found)
	return known
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
