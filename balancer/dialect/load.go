package dialect

import (
	"reflect"
	"slices"
	"unsafe"
)

// An op loads one kind of Go field.
type op uint8

const (
	opNone op = iota
	opString
	opBytes
	opInt32
	opUint32
	opInt64
	opUint64
	opList32   // []uint32, []int32
	opList64   // []uint64, []int64
	opStrings  // []string
	opBytess   // [][]byte
	opMap      // map[string]string, one key
	opPointer  = 0x80
	opKindMask = opPointer - 1
)

// opOf returns how to load a field of a Go type, opNone when it cannot be.
func opOf(t reflect.Type, st step) op {
	if st.key != "" {
		if t == reflect.TypeFor[map[string]string]() {
			return opMap
		}
		return opNone
	}
	switch t.Kind() {
	case reflect.String:
		return opString
	case reflect.Int32:
		return opInt32
	case reflect.Uint32:
		return opUint32
	case reflect.Int64:
		return opInt64
	case reflect.Uint64:
		return opUint64
	case reflect.Pointer:
		switch o := opOf(t.Elem(), st); o {
		case opString, opInt32, opUint32, opInt64, opUint64:
			return o | opPointer
		}
	case reflect.Slice:
		switch e := t.Elem(); e.Kind() {
		case reflect.Uint8:
			return opBytes
		case reflect.Int32, reflect.Uint32:
			return opList32
		case reflect.Int64, reflect.Uint64:
			return opList64
		case reflect.String:
			return opStrings
		case reflect.Slice:
			if e.Elem().Kind() == reflect.Uint8 {
				return opBytess
			}
		}
	}
	return opNone
}

// load reads the field that p points to. Texts and 32-bit ids are aliased.
func (a *access) load(p unsafe.Pointer, v *values) {
	present := a.op&opPointer != 0
	if present {
		if p = *(*unsafe.Pointer)(p); p == nil {
			return
		}
	}
	switch a.op & opKindMask {
	case opString:
		a.text(*(*string)(p), v)
	case opBytes:
		a.text(alias(*(*[]byte)(p)), v)
	case opInt32:
		a.num(int64(*(*int32)(p)), present, v)
	case opUint32:
		a.num(int64(*(*uint32)(p)), present, v)
	case opInt64, opUint64:
		a.num(*(*int64)(p), present, v)
	case opList32:
		a.ids(*(*[]uint32)(p), v)
	case opList64:
		a.wide(*(*[]int64)(p), v)
	case opStrings:
		for _, s := range *(*[]string)(p) {
			a.element(s, v)
		}
	case opBytess:
		for _, b := range *(*[][]byte)(p) {
			a.element(alias(b), v)
		}
	case opMap:
		if s, ok := (*(*map[string]string)(p))[a.key]; ok {
			a.text(s, v)
		}
	}
}

func (a *access) text(s string, v *values) {
	if s != "" && a.slot != slotTokens {
		v.putText(a.ref, s)
	}
}

func (a *access) element(s string, v *values) {
	if a.slot != slotTokens {
		v.pushText(a.ref, s)
	}
}

func (a *access) num(n int64, present bool, v *values) {
	switch {
	case n == 0 && !present:
	case a.slot == slotTokens:
		a.ids([]uint32{uint32(n)}, v)
	default:
		v.putNum(a.ref, n)
	}
}

// ids takes token ids without copying them, but in a batch.
func (a *access) ids(s []uint32, v *values) {
	if a.slot != slotTokens {
		for _, n := range s {
			v.pushNum(a.ref, int64(n))
		}
		return
	}
	if len(s) == 0 {
		return
	}
	switch dst := v.tokensFor(a.ref); {
	case dst == nil:
	case len(*dst) == 0:
		*dst = slices.Clip(s)
	default:
		*dst = append(*dst, s...)
	}
}

func (a *access) wide(s []int64, v *values) {
	ids := make([]uint32, len(s))
	for i, n := range s {
		ids[i] = uint32(n)
	}
	a.ids(ids, v)
}
