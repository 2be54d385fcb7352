package requestkey

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A plan is a node resolved for one message type. Immutable.
type plan struct {
	fields []planned
	unread bool // the content of turns cannot be read
}

// A planned field is an edge of a message type that has it.
type planned struct {
	*edge
	fd   protoreflect.FieldDescriptor
	next *plan
	kind fieldKind
	ids  int // place in the Go struct of a slice of 32-bit token ids, -1 = read them through protoreflect
}

type fieldKind uint8

const (
	explicit fieldKind = iota // a message, or a scalar that can be set to zero
	implicit                  // a scalar whose zero is absent
	list
	idList // of token ids
	mapOf
)

func kindOf(fd protoreflect.FieldDescriptor, s slot) fieldKind {
	switch {
	case fd.IsMap():
		return mapOf
	case fd.IsList() && s == slotTokens && fd.Message() == nil:
		return idList
	case fd.IsList():
		return list
	case fd.HasPresence():
		return explicit
	}
	return implicit
}

// resolve finds the edges of a node in a message type. The sample, which may be nil, gives the Go type.
func (n *node) resolve(d protoreflect.MessageDescriptor, sample protoreflect.Message) *plan {
	p := &plan{}
	contents := false
	for _, e := range n.edges {
		x := planned{edge: e, fd: e.in(d), ids: -1}
		ok := x.fd != nil && x.resolve(sample)
		if ok {
			x.kind = kindOf(x.fd, x.slot)
			p.fields = append(p.fields, x)
		}
		if e.slots&slotContent.bit() != 0 {
			p.unread, contents = !ok && !contents, contents || ok
		}
	}
	return p
}

// in returns the field of a step, nil where the type has none that fits.
func (st step) in(d protoreflect.MessageDescriptor) protoreflect.FieldDescriptor {
	fd := d.Fields().ByName(protoreflect.Name(st.name))
	if st.num != 0 {
		fd = d.Fields().ByNumber(protoreflect.FieldNumber(st.num))
	}
	if fd == nil || fd.IsMap() != (st.key != "") || fd.IsMap() && fd.MapKey().Kind() != protoreflect.StringKind {
		return nil
	}
	return fd
}

// resolve reports whether what the field holds can be read, after finding what is below it.
func (x *planned) resolve(sample protoreflect.Message) bool {
	value := x.fd
	if value.IsMap() {
		value = value.MapValue()
	}
	switch d := value.Message(); {
	case d != nil && x.edge.next != nil:
		x.next = x.edge.next.resolve(d, below(sample, x.fd))
		return x.leaf >= 0 || len(x.next.fields) > 0
	case d != nil:
		return x.slot == slotContent
	case x.edge.next != nil:
		return false
	case x.slot == slotTokens:
		x.ids = goField(sample, x.fd)
		return isInteger(value)
	case x.slot == slotMediaOffset, x.slot == slotMaxTokens && !isText(value):
		return isInteger(value)
	}
	return isText(value) || isInteger(value)
}

// below returns a sample of what a message field holds.
func below(m protoreflect.Message, fd protoreflect.FieldDescriptor) protoreflect.Message {
	switch {
	case m == nil:
		return nil
	case fd.IsMap():
		return m.NewField(fd).Map().NewValue().Message()
	case fd.IsList():
		return m.NewField(fd).List().NewElement().Message()
	}
	return m.NewField(fd).Message()
}

// goField returns the place of the slice that a field of 32-bit integers is in the struct of a generated message, so
// that its ids need not be taken one by one; -1 where there is none.
func goField(m protoreflect.Message, fd protoreflect.FieldDescriptor) int {
	if m == nil || !fd.IsList() {
		return -1
	}
	t := reflect.TypeOf(m.Interface())
	if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return -1
	}
	for i := range t.Elem().NumField() {
		f := t.Elem().Field(i)
		_, tag, _ := strings.Cut(f.Tag.Get("protobuf"), ",")
		num, _, _ := strings.Cut(tag, ",")
		if f.IsExported() && num == strconv.Itoa(int(fd.Number())) &&
			(f.Type == reflect.TypeFor[[]uint32]() || f.Type == reflect.TypeFor[[]int32]()) {
			return i
		}
	}
	return -1
}

// idsAt returns the slice at a place that goField found.
func idsAt(m protoreflect.Message, i int) []uint32 {
	switch s := reflect.ValueOf(m.Interface()).Elem().Field(i).Addr().Interface().(type) {
	case *[]uint32:
		return *s
	case *[]int32:
		return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(*s))), len(*s))
	}
	return nil
}

// walkTyped reads a message whose type has been resolved.
func (f *fields) walkTyped(p *plan, m protoreflect.Message, v *values) {
	for i := range p.fields {
		x := &p.fields[i]
		if x.slots&v.need == 0 || x.kind != implicit && !m.Has(x.fd) {
			continue
		}
		switch x.kind {
		case idList:
			if x.ids >= 0 {
				v.alias(uint8(x.leaf), idsAt(m, x.ids))
			} else {
				f.takeIDs(x, m.Get(x.fd).List(), v)
			}
		case mapOf:
			if val := m.Get(x.fd).Map().Get(protoreflect.ValueOfString(x.key).MapKey()); val.IsValid() {
				f.takeTyped(x, x.fd.MapValue(), val, true, false, v)
			}
		case list:
			for l, i := m.Get(x.fd).List(), 0; i < l.Len(); i++ {
				f.takeTyped(x, x.fd, l.Get(i), true, true, v)
			}
		default:
			f.takeTyped(x, x.fd, m.Get(x.fd), x.kind == explicit, x.list, v)
		}
	}
}

// takeIDs copies token ids.
func (f *fields) takeIDs(x *planned, l protoreflect.List, v *values) {
	dst := v.tokensFor(uint8(x.leaf))
	if dst == nil {
		return
	}
	ids := slices.Grow(*dst, l.Len())
	for i := range l.Len() {
		ids = append(ids, uint32(integer(x.fd, l.Get(i))))
	}
	*dst = ids
}

// takeTyped reads one value of a field.
func (f *fields) takeTyped(
	x *planned, fd protoreflect.FieldDescriptor, val protoreflect.Value, present, element bool, v *values,
) {
	switch {
	case x.next != nil:
		m, before := val.Message(), v.mark()
		v.unread = v.unread || x.next.unread && x.slot == slotTurn
		f.walkTyped(x.next, m, v)
		if x.leaf >= 0 {
			v.endMessage(f, x.edge, message{typed: m})
		} else if element {
			v.endElement(x.edge, before, message{typed: m})
		}
	case x.slot == slotContent && fd.Message() != nil:
		v.content(val.Message())
	case isText(fd):
		var s string
		if fd.Kind() == protoreflect.BytesKind {
			s = alias(val.Bytes())
		} else {
			s = val.String()
		}
		if s != "" || present {
			v.text(x.edge, s, element)
		}
	default:
		if n := integer(fd, val); n != 0 || present {
			v.num(x.edge, n, element)
		}
	}
}

// content takes a content that is a message, as the HTTP endpoint takes what its JSON would be: a
// google.protobuf.Value, or one of several parts. Of a part that has no text the hash is taken.
func (v *values) content(m protoreflect.Message) {
	b, err := protojson.MarshalOptions{UseProtoNames: true, AllowPartial: true}.Marshal(m.Interface())
	var compact bytes.Buffer // protojson's spaces differ from program to program
	if err == nil {
		err = json.Compact(&compact, b)
	}
	if b = compact.Bytes(); err != nil || len(b) == 0 {
		v.unread = true
		return
	}
	before := len(v.turn)
	if b[0] == '{' {
		v.turn = appendPart(v.turn, b, false)
	} else {
		v.turn = appendContent(v.turn, b)
	}
	v.unread = v.unread || len(v.turn) == before && b[0] != 'n' // null
}

func isText(fd protoreflect.FieldDescriptor) bool {
	return fd.Kind() == protoreflect.StringKind || fd.Kind() == protoreflect.BytesKind
}

func isInteger(fd protoreflect.FieldDescriptor) bool {
	switch fd.Kind() {
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Uint32Kind, protoreflect.Sfixed32Kind,
		protoreflect.Fixed32Kind, protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Uint64Kind,
		protoreflect.Sfixed64Kind, protoreflect.Fixed64Kind, protoreflect.EnumKind:
		return true
	}
	return false
}

func integer(fd protoreflect.FieldDescriptor, val protoreflect.Value) int64 {
	switch fd.Kind() {
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		return int64(val.Uint())
	case protoreflect.EnumKind:
		return int64(val.Enum())
	}
	return val.Int()
}

// maxPlans bounds the message types remembered by one method. A program has few;
// one that makes descriptors without end starts over each time it is reached.
const maxPlans = 256

// A messageType is a Go type and a descriptor: dynamic messages of all types have one Go type.
type messageType struct {
	goType reflect.Type
	desc   protoreflect.MessageDescriptor
}

// A planCache holds the plans by type. Reads take no lock.
type planCache struct {
	last atomic.Pointer[lastPlan]
	all  atomic.Pointer[map[messageType]*plan]
	mu   sync.Mutex // held to replace the map
}

type lastPlan struct {
	messageType
	*plan
}

func (c *planCache) get(t messageType) *plan {
	if p := c.last.Load(); p != nil && p.messageType == t {
		return p.plan
	}
	if m := c.all.Load(); m != nil {
		return (*m)[t]
	}
	return nil
}

func (c *planCache) put(t messageType, p *plan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := map[messageType]*plan{}
	if m := c.all.Load(); m != nil && len(*m) < maxPlans {
		for k, p := range *m {
			next[k] = p
		}
	}
	next[t] = p
	c.all.Store(&next)
	c.last.Store(&lastPlan{t, p})
}

// readTyped reads a message that is not encoded. One of gogo's generator is read in its encoded form, since
// protoreflect does not know all that it makes; names are found by protoreflect alone.
func (f *fields) readTyped(msg any, v *values) {
	if _, ok := msg.(proto.Message); !ok && !f.named && f.readSelfEncoded(msg, v) {
		return
	}
	if m, d := reflected(msg); d != nil {
		t := messageType{reflect.TypeOf(msg), d}
		p := f.plans.get(t)
		if p == nil {
			p = f.plan(d, m)
			f.plans.put(t, p)
		}
		f.walkTyped(p, m, v)
		return
	}
	f.readSelfEncoded(msg, v)
}

// plan resolves the paths in a type. Where protoreflect panics at its messages the plan is empty.
func (f *fields) plan(d protoreflect.MessageDescriptor, sample protoreflect.Message) (p *plan) {
	p = &plan{}
	defer harmless()
	if d.Fields().Len() > 0 {
		sample.Has(d.Fields().Get(0))
	}
	return f.root.resolve(d, sample)
}

// readSelfEncoded reads a message that holds its encoded form, or encodes itself as gogo's do.
func (f *fields) readSelfEncoded(msg any, v *values) bool {
	switch m := msg.(type) {
	case interface{ Bytes() []byte }:
		f.readRaw(m.Bytes(), v)
	case interface{ Marshal() ([]byte, error) }:
		if b, err := m.Marshal(); err == nil {
			f.readRaw(b, v)
		}
	default:
		return false
	}
	return true
}

// reflected returns a protobuf message of either API for reflection. There is no descriptor where msg is none, or one
// that protoreflect panics at: some that are not of its own generator.
func reflected(msg any) (m protoreflect.Message, d protoreflect.MessageDescriptor) {
	defer harmless()
	switch x := msg.(type) {
	case proto.Message:
		m = x.ProtoReflect()
	case protoadapt.MessageV1:
		m = protoadapt.MessageV2Of(x).ProtoReflect()
	default:
		return nil, nil
	}
	return m, m.Descriptor()
}
