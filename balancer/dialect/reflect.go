package dialect

import (
	"google.golang.org/protobuf/reflect/protoreflect"
)

// resolve compiles the path to field descriptors. It says no where the message
// has no such field or the path does not fit it.
func (a *access) resolve(d protoreflect.MessageDescriptor) bool {
	for i, st := range a.path {
		fd := fieldOf(d, st)
		if fd == nil || fd.IsMap() != (st.key != "") {
			return false
		}
		value := fd
		if fd.IsMap() {
			if fd.MapKey().Kind() != protoreflect.StringKind {
				return false
			}
			value = fd.MapValue()
		}
		a.fds = append(a.fds, fd)
		d = value.Message()
		if (d != nil) != (i < len(a.path)-1 || a.elems != nil) {
			return false
		}
	}
	for i := range a.elems {
		if e := &a.elems[i]; !e.resolve(d) {
			e.fds = nil
		}
	}
	return true
}

func fieldOf(d protoreflect.MessageDescriptor, st step) protoreflect.FieldDescriptor {
	if st.num != 0 {
		return d.Fields().ByNumber(protoreflect.FieldNumber(st.num))
	}
	return d.Fields().ByName(protoreflect.Name(st.name))
}

func stepIs(st step, fd protoreflect.FieldDescriptor) bool {
	if st.num != 0 {
		return int32(fd.Number()) == st.num
	}
	return string(fd.Name()) == st.name
}

// reflect reads the field that starts with step i in message m.
func (a *access) reflect(m protoreflect.Message, i int, v *values) {
	if i == len(a.fds) { // a chat turn
		for j := range a.elems {
			if e := &a.elems[j]; e.fds != nil {
				e.reflect(m, 0, v)
			}
		}
		v.flushTurn(a.ref)
		return
	}
	fd := a.fds[i]
	if !m.Has(fd) {
		return
	}
	val := m.Get(fd)
	switch {
	case fd.IsMap():
		val = val.Map().Get(protoreflect.ValueOfString(a.path[i].key).MapKey())
		if !val.IsValid() {
			return
		}
		if fd = fd.MapValue(); fd.Message() == nil {
			a.scalar(fd, val, true, v)
			return
		}
	case fd.IsList():
		a.list(fd, val.List(), i, v)
		return
	case fd.Message() == nil:
		a.scalar(fd, val, fd.HasPresence(), v)
		return
	}
	a.reflect(val.Message(), i+1, v)
	if a.elems == nil && a.path[i].list {
		v.flush(1 << a.ref)
	}
}

func (a *access) list(fd protoreflect.FieldDescriptor, l protoreflect.List, i int, v *values) {
	if fd.Message() != nil {
		for j := range l.Len() {
			a.reflect(l.Get(j).Message(), i+1, v)
			if a.elems == nil {
				v.flush(1 << a.ref)
			}
		}
		return
	}
	var ids []uint32
	for j := range l.Len() {
		switch val := l.Get(j); {
		case isText(fd):
			a.element(textOf(fd, val), v)
		case a.slot == slotTokens && ids == nil:
			ids = make([]uint32, 0, l.Len())
			fallthrough
		default:
			if n, ok := integer(fd, val); ok {
				ids = append(ids, uint32(n))
			}
		}
	}
	a.ids(ids, v)
}

func (a *access) scalar(fd protoreflect.FieldDescriptor, val protoreflect.Value, present bool, v *values) {
	if isText(fd) {
		a.text(textOf(fd, val), v)
	} else if n, ok := integer(fd, val); ok {
		a.num(n, present, v)
	}
}

func isText(fd protoreflect.FieldDescriptor) bool {
	return fd.Kind() == protoreflect.StringKind || fd.Kind() == protoreflect.BytesKind
}

func textOf(fd protoreflect.FieldDescriptor, val protoreflect.Value) string {
	if fd.Kind() == protoreflect.BytesKind {
		return alias(val.Bytes())
	}
	return val.String()
}

func integer(fd protoreflect.FieldDescriptor, val protoreflect.Value) (int64, bool) {
	switch fd.Kind() {
	case protoreflect.Int32Kind, protoreflect.Int64Kind, protoreflect.Sint32Kind, protoreflect.Sint64Kind,
		protoreflect.Sfixed32Kind, protoreflect.Sfixed64Kind:
		return val.Int(), true
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		return int64(val.Uint()), true
	}
	return 0, false
}
