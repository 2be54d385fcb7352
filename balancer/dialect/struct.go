package dialect

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
)

// A hop goes from one struct to the next on the way to a field.
type hop struct {
	kind    hopKind
	off     uintptr
	iface   reflect.Type // of a oneof field
	wrapper reflect.Type // pointer to the wrapper struct of the member
}

type hopKind uint8

const (
	hopPointer hopKind = iota
	hopOneof
	hopList // slice of pointers
)

// direct compiles a path to offsets in a struct of generated code. It says no
// where a field is not exported or of a kind that it does not know.
func (a *access) direct(t reflect.Type, path []step) bool {
	var off uintptr
	for i, st := range path {
		f, ok := findField(t, st)
		if !ok {
			return false
		}
		off += f.Offset
		ft := f.Type
		if ft.Kind() == reflect.Interface {
			w, ok := oneofWrapper(t, f, st)
			if !ok {
				return false
			}
			a.hops = append(a.hops, hop{kind: hopOneof, off: off, iface: ft, wrapper: w})
			ft, off = w.Elem().Field(0).Type, w.Elem().Field(0).Offset
		}
		if i == len(path)-1 && a.elems == nil {
			a.off = off
			a.op = opOf(ft, st)
			return a.op != opNone
		}
		switch {
		case st.key != "":
			return false
		case ft.Kind() == reflect.Struct: // gogo, not nullable
			t = ft
		case ft.Kind() == reflect.Pointer && ft.Elem().Kind() == reflect.Struct:
			a.hops = append(a.hops, hop{kind: hopPointer, off: off})
			t, off = ft.Elem(), 0
		case ft.Kind() == reflect.Slice && ft.Elem().Kind() == reflect.Pointer && ft.Elem().Elem().Kind() == reflect.Struct:
			a.hops = append(a.hops, hop{kind: hopList, off: off})
			t, off = ft.Elem().Elem(), 0
		default:
			return false
		}
	}
	for i := range a.elems {
		if e := &a.elems[i]; !e.direct(t, e.path) && structHas(t, e.path[0]) {
			return false
		}
	}
	return true
}

// findField returns the exported field of a step, or the oneof that holds it.
func findField(t reflect.Type, st step) (reflect.StructField, bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		if tagMatches(f.Tag.Get("protobuf"), st) {
			return f, true
		}
		if f.Tag.Get("protobuf_oneof") != "" && f.Type.Kind() == reflect.Interface {
			if _, ok := oneofWrapper(t, f, st); ok {
				return f, true
			}
		}
	}
	return reflect.StructField{}, false
}

func structHas(t reflect.Type, st step) bool {
	_, ok := findField(t, st)
	return ok
}

// tagMatches reports whether a tag such as "bytes,3,opt,name=text" is the step's.
func tagMatches(tag string, st step) bool {
	_, tag, ok := strings.Cut(tag, ",")
	num, rest, _ := strings.Cut(tag, ",")
	if !ok {
		return false
	}
	if st.num != 0 {
		return num == strconv.Itoa(int(st.num))
	}
	return slices.Contains(strings.Split(rest, ","), "name="+st.name)
}

// oneofWrapper returns the wrapper type of the member of oneof field f: from the
// list that older generated code has, else by setting the member in a new message.
func oneofWrapper(t reflect.Type, f reflect.StructField, st step) (reflect.Type, bool) {
	msg := reflect.New(t)
	var wrappers []any
	if w, ok := msg.Interface().(interface{ XXX_OneofWrappers() []any }); ok {
		wrappers = w.XXX_OneofWrappers()
	} else if pm := protoMessage(msg.Interface()); pm != nil {
		m := pm.ProtoReflect()
		for i := range m.Descriptor().Fields().Len() {
			if fd := m.Descriptor().Fields().Get(i); fd.ContainingOneof() != nil && stepIs(st, fd) {
				m.Set(fd, m.NewField(fd))
				if w := msg.Elem().FieldByIndex(f.Index); !w.IsNil() {
					wrappers = append(wrappers, w.Interface())
				}
			}
		}
	}
	for _, w := range wrappers {
		t := reflect.TypeOf(w)
		if t != nil && t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct && t.Elem().NumField() == 1 &&
			t.Implements(f.Type) && tagMatches(t.Elem().Field(0).Tag.Get("protobuf"), st) {
			return t, true
		}
	}
	return nil, false
}

// protoMessage returns msg as a protobuf message of either API, or nil.
func protoMessage(msg any) proto.Message {
	switch m := msg.(type) {
	case proto.Message:
		return m
	case protoadapt.MessageV1:
		return protoadapt.MessageV2Of(m)
	}
	return nil
}

// read reads the field of a struct that p points to.
func (a *access) read(p unsafe.Pointer, hops []hop, v *values) {
	for i := range hops {
		h := &hops[i]
		at := unsafe.Add(p, h.off)
		switch h.kind {
		case hopPointer:
			p = *(*unsafe.Pointer)(at)
		case hopOneof:
			w := reflect.NewAt(h.iface, at).Elem().Elem()
			if !w.IsValid() || w.Type() != h.wrapper {
				return
			}
			p = w.UnsafePointer()
		case hopList:
			for _, e := range *(*[]unsafe.Pointer)(at) {
				a.readElement(e, hops[i+1:], v)
			}
			return
		}
		if p == nil {
			return
		}
	}
	if a.elems != nil {
		a.readElement(p, nil, v)
	} else if a.op != opNone {
		a.load(unsafe.Add(p, a.off), v)
	}
}

func (a *access) readElement(p unsafe.Pointer, hops []hop, v *values) {
	if a.elems == nil {
		if p != nil {
			a.read(p, hops, v)
		}
		v.flush(1 << a.ref)
		return
	}
	for i := range a.elems {
		if e := &a.elems[i]; p != nil {
			e.read(p, e.hops, v)
		}
	}
	v.flushTurn(a.ref)
}
