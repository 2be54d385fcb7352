package dialect

import (
	"reflect"
	"sync"
	"sync/atomic"
	"unsafe"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// An access is how a leaf is read of one message type: through offsets, or
// through field descriptors where fds is set.
type access struct {
	leaf
	key   string // of a map at the end of the path
	hops  []hop
	op    op
	off   uintptr
	elems []access // role and content of a chat turn
	fds   []protoreflect.FieldDescriptor
}

// A plan is how one message type is read. Immutable.
type plan struct {
	typ     reflect.Type
	desc    protoreflect.MessageDescriptor // set if protoreflect is used
	access  []access
	structs bool // some access goes through offsets
	bytes   bool // not a message: Bytes() holds one
}

// maxPlans bounds the message types remembered by one method. A program has few;
// one that makes descriptors without end starts over each time it is reached.
const maxPlans = 256

// A planCache maps Go types and descriptors to plans. Reads take no lock.
type planCache struct {
	last atomic.Pointer[plan] // of a Go type that tells the message type alone
	all  atomic.Pointer[map[any]*plan]
	mu   sync.Mutex // held to replace the map
}

func (c *planCache) get(key any) *plan {
	if m := c.all.Load(); m != nil {
		return (*m)[key]
	}
	return nil
}

func (c *planCache) put(key any, p *plan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := map[any]*plan{}
	if m := c.all.Load(); m != nil && len(*m) < maxPlans {
		for k, p := range *m {
			next[k] = p
		}
	}
	next[key] = p
	c.all.Store(&next)
}

// readTyped reads a message that is not known to be encoded.
func (f *fields) readTyped(msg any, v *values) {
	t := reflect.TypeOf(msg)
	p := f.plans.last.Load()
	if p == nil || p.typ != t {
		if p = f.plans.get(t); p == nil {
			p = f.plan(t, msg)
			f.plans.put(t, p)
		}
		if p.desc == nil {
			f.plans.last.Store(p)
		}
	}
	if p.bytes {
		f.readRaw(msg.(interface{ Bytes() []byte }).Bytes(), v)
		return
	}
	var m protoreflect.Message
	if p.desc != nil {
		m = protoMessage(msg).ProtoReflect()
		if d := m.Descriptor(); d != p.desc { // one Go type for many message types
			q := f.plans.get(d)
			if q == nil {
				q = &plan{typ: t, desc: d}
				f.compile(q, nil)
				f.plans.put(d, q)
			}
			p = q
		}
	}
	var at unsafe.Pointer
	if p.structs {
		if at = reflect.ValueOf(msg).UnsafePointer(); at == nil {
			return
		}
	}
	for i := range p.access {
		switch a := &p.access[i]; {
		case !v.wants(a.slot):
		case a.fds != nil:
			a.reflect(m, 0, v)
		default:
			a.read(at, a.hops, v)
		}
	}
}

// plan finds out how to read the messages of a Go type. What foreign code makes
// impossible to find out is left out, once and for all.
func (f *fields) plan(t reflect.Type, msg any) (p *plan) {
	p = &plan{typ: t}
	defer harmless()
	pm := protoMessage(msg)
	if pm == nil {
		if _, p.bytes = msg.(interface{ Bytes() []byte }); p.bytes {
			return p
		}
	}
	var st reflect.Type
	if t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct && generated(t.Elem()) {
		st = t.Elem()
	}
	if pm != nil {
		p.desc = descriptorOf(pm)
	}
	f.compile(p, st)
	if st != nil && !p.reflects() {
		p.desc = nil
	}
	return p
}

// compile resolves every leaf: in struct type st if there is one, else in p.desc.
func (f *fields) compile(p *plan, st reflect.Type) {
	for _, l := range f.leaves {
		a := newAccess(l)
		if st != nil && a.direct(st, l.path) {
			p.structs = true
			p.access = append(p.access, a)
			continue
		}
		if a = newAccess(l); p.desc != nil && a.resolve(p.desc) {
			p.access = append(p.access, a)
		}
	}
}

// descriptorOf returns the descriptor of a message, nil for one that has none:
// protoreflect refuses some messages that are not of its own generator.
func descriptorOf(m proto.Message) protoreflect.MessageDescriptor {
	defer harmless()
	return m.ProtoReflect().Descriptor()
}

func newAccess(l leaf) access {
	a := access{leaf: l, key: l.path[len(l.path)-1].key}
	for _, part := range l.parts {
		a.elems = append(a.elems, newAccess(part))
	}
	return a
}

func (p *plan) reflects() bool {
	for i := range p.access {
		if p.access[i].fds != nil {
			return true
		}
	}
	return false
}

// generated reports whether a struct has exported fields with protobuf tags, as
// generated code of the open APIs has.
func generated(t reflect.Type) bool {
	for i := range t.NumField() {
		f := t.Field(i)
		if f.IsExported() && (f.Tag.Get("protobuf") != "" || f.Tag.Get("protobuf_oneof") != "") {
			return true
		}
	}
	return false
}
