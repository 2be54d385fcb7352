package requestkey

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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
	slotMaxTokens
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

// fields are the paths that start in one kind of message. Immutable but for the plans.
type fields struct {
	paths [numSlots][]path // the alternatives of each slot, best first
	names [numSlots]string // the dialect's field and its path, for errors
	named bool             // some path has a name

	plans   sync.Map // protoreflect.MessageDescriptor → *plan
	planned atomic.Int32
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
			found = found || alt.tensor() || len(front) == 0 && alt.resolve(slot(s), d, nil).fds != nil
			for _, before := range front {
				found = found || slices.Concat(before, alt).resolve(slot(s), d, nil).fds != nil
			}
		}
		if !found {
			return fmt.Errorf("%s: %s has no such field of a kind that can be read", f.names[s], d.FullName())
		}
	}
	return nil
}

// A plan holds the paths of fields as they run through one message type. Immutable.
type plan [numSlots][]route

// A route is a path in a message type: the field of each step, nil where the type lacks one that can be read.
type route struct {
	fds  []protoreflect.FieldDescriptor
	leaf protoreflect.FieldDescriptor // the last of fds, or the value of the map that it is

	idList bool         // it is a list of token ids
	in     reflect.Type // the Go struct that has it as a slice of 32-bit integers, nil = none
	at     int          // the slice's place there
}

// maxPlans bounds the message types remembered. A program has few; one that makes descriptors without end starts over
// each time it is reached.
const maxPlans = 256

// plan returns the paths in the type of a message. Where protoreflect panics at its messages it is empty.
func (f *fields) plan(m protoreflect.Message) *plan {
	d := m.Descriptor()
	if p, ok := f.plans.Load(d); ok {
		return p.(*plan)
	}
	p := new(plan)
	func() {
		defer harmless()
		if d.Fields().Len() > 0 {
			m.Has(d.Fields().Get(0))
		}
		f.resolve(p, d, m)
	}()
	if f.planned.Add(1) > maxPlans {
		f.plans.Clear()
		f.planned.Store(1)
	}
	f.plans.Store(d, p)
	return p
}

// resolve finds the paths in a message type. The sample, which may be nil, gives the Go type.
func (f *fields) resolve(p *plan, d protoreflect.MessageDescriptor, sample protoreflect.Message) {
	for s, alts := range f.paths {
		for _, alt := range alts {
			p[s] = append(p[s], alt.resolve(slot(s), d, sample))
		}
	}
}

func (p path) resolve(s slot, d protoreflect.MessageDescriptor, m protoreflect.Message) (r route) {
	fds := make([]protoreflect.FieldDescriptor, len(p))
	for i, st := range p {
		if d == nil {
			return route{}
		}
		fd := st.in(d)
		if fd == nil {
			return route{}
		}
		if fds[i], r.leaf = fd, fd; fd.IsMap() {
			r.leaf = fd.MapValue()
		}
		if d = r.leaf.Message(); i == len(p)-1 {
			break
		}
		m = below(m, fd)
	}
	if !s.fits(r.leaf) {
		return route{}
	}
	if r.fds = fds; s == slotTokens && r.leaf.IsList() {
		r.idList = true
		r.in, r.at = sliceOf(m, r.leaf)
	}
	return r
}

// in returns the field of a step, nil where the type has none that fits.
func (st step) in(d protoreflect.MessageDescriptor) protoreflect.FieldDescriptor {
	fd := d.Fields().ByName(protoreflect.Name(st.name))
	if st.num != 0 {
		fd = d.Fields().ByNumber(st.num)
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

// below returns a sample of what a message field holds.
func below(m protoreflect.Message, fd protoreflect.FieldDescriptor) protoreflect.Message {
	switch {
	case m == nil || fd.Message() == nil:
		return nil
	case fd.IsMap():
		return nil
	case fd.IsList():
		return m.NewField(fd).List().NewElement().Message()
	}
	return m.NewField(fd).Message()
}

// sliceOf returns the type of a generated message and the place in its struct of a field of 32-bit integers, so that
// they need not be taken one by one; nil where there is none.
func sliceOf(m protoreflect.Message, fd protoreflect.FieldDescriptor) (reflect.Type, int) {
	if m == nil {
		return nil, 0
	}
	t := reflect.TypeOf(m.Interface())
	if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return nil, 0
	}
	for i := range t.Elem().NumField() {
		f := t.Elem().Field(i)
		_, tag, _ := strings.Cut(f.Tag.Get("protobuf"), ",")
		num, _, _ := strings.Cut(tag, ",")
		if f.IsExported() && num == strconv.Itoa(int(fd.Number())) &&
			(f.Type == reflect.TypeFor[[]uint32]() || f.Type == reflect.TypeFor[[]int32]()) {
			return t, i
		}
	}
	return nil, 0
}

// ids returns the integers of the list that the route ends in: a slice of the message itself where sliceOf found one.
func (r *route) ids(m protoreflect.Message) []uint32 {
	if v := m.Interface(); r.in != nil && reflect.TypeOf(v) == r.in {
		switch s := reflect.ValueOf(v).Elem().Field(r.at).Addr().Interface().(type) {
		case *[]uint32:
			return *s
		case *[]int32:
			return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(*s))), len(*s))
		}
	}
	l := m.Get(r.leaf).List()
	ids := make([]uint32, l.Len())
	for i := range ids {
		ids[i] = uint32(integer(r.leaf, l.Get(i)))
	}
	return ids
}

func isText(fd protoreflect.FieldDescriptor) bool {
	return fd.Kind() == protoreflect.StringKind || fd.Kind() == protoreflect.BytesKind
}

func isInteger(fd protoreflect.FieldDescriptor) bool {
	switch fd.Kind() {
	case protoreflect.BoolKind, protoreflect.FloatKind, protoreflect.DoubleKind, protoreflect.MessageKind, protoreflect.GroupKind:
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
