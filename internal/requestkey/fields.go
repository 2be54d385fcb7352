package requestkey

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/warmpath/warmpath/balancer/dialect"
)

// A slot is what a field means.
type slot uint8

const (
	slotRequestID slot = iota
	slotSession
	slotModel
	slotAdapter
	slotCacheSalt
	slotRank
	slotPrompt
	slotTokens
	slotTurn // a message: one turn of a chat
	slotRole
	slotContent
	slotMedia // a message: one or several media
	slotMediaID
	slotMediaOffset
	slotJSON
	slotTensor // a message: one input of a KServe v2 request
	slotTensorRaw
	slotTensorName
	slotTensorType
	slotUsagePrompt
	slotUsageOutput
	slotUsageCached
	slotUsageDelta
	slotUsageJSON
	numSlots
)

// repeated reports whether every value of the slot counts, whatever its path.
func (s slot) repeated() bool {
	return s == slotTokens || s == slotTurn || s == slotContent || s == slotMedia || s == slotTensor
}

// fields are the paths that start in one kind of message. Immutable.
type fields struct {
	paths [numSlots][]path // the alternatives of each slot, best first
	names [numSlots]string // the dialect's field and its path, for errors
	named bool             // some path has a name
}

// add compiles the path of a slot.
func (f *fields) add(name string, s slot, p dialect.Path) (err error) {
	if f.paths[s], err = parsePath(p); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	f.names[s] = fmt.Sprintf("%s: %q", name, string(p))
	for _, alt := range f.paths[s] {
		f.named = f.named || !alt.tensor() && slices.ContainsFunc(alt, func(st step) bool { return st.num == 0 })
	}
	return nil
}

func (f *fields) has(s slot) bool { return len(f.paths[s]) > 0 }

// open returns a message of any shape as a source of the fields.
func (f *fields) open(msg any, whole bool) source {
	s := f.in(messageOf(msg, f.named, whole))
	s.whole = whole
	return s
}

// check returns an error for a slot of which no path leads to a field that can be read in messages of the type, or in
// what one of the paths in front leads to.
func (f *fields) check(d protoreflect.MessageDescriptor, front ...path) error {
	for s, alts := range f.paths {
		if len(alts) == 0 {
			continue
		}
		found := false
		for _, alt := range alts {
			found = found || alt.tensor() || len(front) == 0 && alt.leads(d, slot(s))
			for _, before := range front {
				found = found || slices.Concat(before, alt).leads(d, slot(s))
			}
		}
		if !found {
			return fmt.Errorf("%s: %s has no such field of a kind that can be read", f.names[s], d.FullName())
		}
	}
	return nil
}

// leads reports whether the path leads to a field of a message type that can be read as the slot.
func (p path) leads(d protoreflect.MessageDescriptor, s slot) bool {
	var fd protoreflect.FieldDescriptor
	for _, st := range p {
		if d == nil {
			return false
		}
		if fd = st.in(d); fd == nil {
			return false
		}
		if fd.IsMap() {
			fd = fd.MapValue()
		}
		d = fd.Message()
	}
	return s.fits(fd)
}

// in returns the field of a step, nil where the type has none that fits.
func (st step) in(d protoreflect.MessageDescriptor) protoreflect.FieldDescriptor {
	var fd protoreflect.FieldDescriptor
	if st.num != 0 {
		fd = d.Fields().ByNumber(st.num)
	} else {
		fd = d.Fields().ByName(protoreflect.Name(st.name))
	}
	if fd == nil || fd.IsMap() != (st.key != "") || fd.IsMap() && fd.MapKey().Kind() != protoreflect.StringKind {
		return nil
	}
	return fd
}

// fits reports whether what a field holds can be read as the slot.
func (s slot) fits(fd protoreflect.FieldDescriptor) bool {
	inner := fd.Message() != nil
	switch s {
	case slotTurn, slotMedia, slotTensor:
		return inner
	case slotContent:
		return inner || isText(fd) || isInteger(fd)
	case slotTokens, slotMediaOffset:
		return isInteger(fd)
	}
	return isText(fd) || isInteger(fd)
}

// idFields has of each Go type of messages the places in its struct of the slices of 32-bit integers, by field number:
// reflect.Type → map[protoreflect.FieldNumber]int.
var idFields sync.Map

func idFieldsOf(t reflect.Type) map[protoreflect.FieldNumber]int {
	if known, ok := idFields.Load(t); ok {
		return known.(map[protoreflect.FieldNumber]int)
	}
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
	idFields.Store(t, found)
	return found
}

// idsOf returns a list of integers: the slice of a generated message itself where its Go type has one of 32 bits.
func idsOf(m protoreflect.Message, fd protoreflect.FieldDescriptor) []uint32 {
	v := m.Interface()
	if i, ok := idFieldsOf(reflect.TypeOf(v))[fd.Number()]; ok {
		switch s := reflect.ValueOf(v).Elem().Field(i).Addr().Interface().(type) {
		case *[]uint32:
			return *s
		case *[]int32:
			return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(*s))), len(*s))
		}
	}
	l := m.Get(fd).List()
	ids := make([]uint32, l.Len())
	for i := range ids {
		ids[i] = uint32(integer(fd, l.Get(i)))
	}
	return ids
}

func isText(fd protoreflect.FieldDescriptor) bool {
	return fd.Kind() == protoreflect.StringKind || fd.Kind() == protoreflect.BytesKind
}

func isInteger(fd protoreflect.FieldDescriptor) bool {
	switch fd.Kind() {
	case protoreflect.BoolKind, protoreflect.FloatKind, protoreflect.DoubleKind,
		protoreflect.MessageKind, protoreflect.GroupKind:
		return false
	}
	return !isText(fd)
}

// integer returns the value of a field for which isInteger holds.
func integer(fd protoreflect.FieldDescriptor, val protoreflect.Value) int64 {
	switch fd.Kind() {
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		return int64(val.Uint())
	case protoreflect.EnumKind:
		return int64(val.Enum())
	}
	return val.Int()
}
