package requestkey

import (
	"math"
	"reflect"
	"slices"
	"sync/atomic"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Usage reads the usage that one response message carries into u, which starts
// as [policy.NoUsage], and reports whether there was any. It is called for
// every message of a call: totals raise u, deltas are added to it. A message
// that counts prompt tokens and leaves cached tokens at zero means that none were
// cached, since encoded zeros are left out.
func (m *Method) Usage(u *policy.Usage, msg any) bool {
	defer harmless()
	return m.readUsage(u, msg)
}

func (m *Method) readUsage(u *policy.Usage, msg any) (found bool) {
	var t usageTally
	for i := range t {
		t[i].sum, t[i].alt = -1, math.MaxInt
	}
	var s source
	steps := m.usage.in(msg)
	if steps == nil || len(m.usageJSON.alts) > 0 {
		s = open(msg, m.named, false)
	}
	if steps != nil {
		t.fields(reflect.ValueOf(msg).Elem(), steps)
	} else {
		t.message(&s, s.message, m.usage.root)
	}
	prompt, output, cached, delta := t[promptCount].sum, t[outputCount].sum, t[cachedCount].sum, t[deltaCount].sum
	if delta >= 0 {
		u.OutputTokens = min(max(u.OutputTokens, 0)+delta, math.MaxInt32)
	}
	if where := m.usageCached.alts; prompt > 0 && len(where) > 0 && where[0][0].key == "" {
		cached = max(cached, 0) // in a number, not in a map, zero is not encoded
	}
	found = raise(u, prompt, output, cached) || delta >= 0
	if len(m.usageJSON.alts) > 0 {
		if body := m.usageJSON.first(&s); body.text != "" {
			found = ReadUsage(u, bytesOf(body.text)) || found
		}
	}
	return found
}

// raise sets the counts of u to others that are more, and reports whether there is one; -1 is none.
func raise(u *policy.Usage, prompt, output, cached int) bool {
	u.PromptTokens = max(u.PromptTokens, prompt)
	u.OutputTokens = max(u.OutputTokens, output)
	u.CachedTokens = max(u.CachedTokens, cached)
	return max(prompt, output, cached) >= 0
}

// The counts that usage has.
const (
	promptCount = iota
	outputCount
	cachedCount
	deltaCount
	usageCounts
)

// A usageTree is the paths to all counts of a method as one tree, so that a message is read once. Safe for concurrent
// use.
type usageTree struct {
	root  []usageStep
	types atomic.Pointer[[]usageType] // the last maxUsageTypes types that were read, the latest first; nil = none
}

const maxUsageTypes = 4

// A usageType is a Go type of messages, and the tree with the places of all steps in its struct.
type usageType struct {
	of   reflect.Type
	root []usageStep // nil = some step has no place in the struct: protoreflect reads the message
}

// A usageStep is a step of a path, and what follows.
type usageStep struct {
	path  path        // the step alone
	inner []usageStep // empty at the end of a path
	count int         // at the end of a path: promptCount to deltaCount
	alt   int         // the alternative that the path is; the first is the best
	last  bool        // it is the last alternative
	adds  bool        // there is a list on the way, of which all values are added up

	field   int          // the index of the field in a struct
	wrapper reflect.Type // of a member of a oneof: what the field holds if the member is set; nil = it is none
}

// newUsageTree returns the tree of a method whose places are compiled.
func (m *Method) newUsageTree() *usageTree {
	t := new(usageTree)
	for count, p := range [usageCounts]*place{&m.usagePrompt, &m.usageOutput, &m.usageCached, &m.usageDelta} {
		for alt, path := range p.alts {
			steps, end := &t.root, len(path)-1
			for i, st := range path[:end] {
				at := slices.IndexFunc(*steps, func(known usageStep) bool { return len(known.inner) > 0 && known.path[0] == st })
				if at < 0 {
					at = len(*steps)
					*steps = append(*steps, usageStep{path: path[i : i+1]})
				}
				steps = &(*steps)[at].inner
			}
			last := alt == len(p.alts)-1
			*steps = append(*steps, usageStep{path: path[end:], count: count, alt: alt, last: last, adds: path.hasList()})
		}
	}
	return t
}

// in returns the tree for the struct of a generated message, nil for any other message.
func (t *usageTree) in(msg any) []usageStep {
	of, known := reflect.TypeOf(msg), t.types.Load()
	if known != nil {
		for i := range *known {
			if (*known)[i].of == of {
				return (*known)[i].root
			}
		}
	}
	m, generated := msg.(proto.Message)
	if !generated {
		return nil
	}
	root, ok := fieldsOf(m.ProtoReflect(), t.root)
	if !ok {
		root = nil
	}
	next := []usageType{{of, root}}
	if known != nil {
		next = append(next, (*known)[:min(len(*known), maxUsageTypes-1)]...)
	}
	t.types.Store(&next)
	return root
}

// fieldsOf returns steps with their places in the struct of a message. ok is false unless each step leads to an exported
// field that holds numbers or messages.
func fieldsOf(m protoreflect.Message, steps []usageStep) (in []usageStep, ok bool) {
	of := reflect.TypeOf(m.Interface())
	if of.Kind() != reflect.Pointer || of.Elem().Kind() != reflect.Struct {
		return nil, false
	}
	for _, st := range steps {
		fd, holds := st.path[0].in(m.Descriptor())
		ends := len(st.inner) == 0
		if fd == nil || fd.IsMap() || ends && kinds[holds.Kind()] != kindNumber || !ends && holds.Message() == nil {
			return nil, false
		}
		if st.field, st.wrapper = fieldOf(m, fd); st.field < 0 {
			return nil, false
		}
		if !ends {
			inner := m.NewField(fd)
			if fd.IsList() {
				inner = inner.List().NewElement()
			}
			if st.inner, ok = fieldsOf(inner.Message(), st.inner); !ok {
				return nil, false
			}
		}
		in = append(in, st)
	}
	return in, true
}

// fieldOf returns the index of a field in the struct of a message, and the wrapper of a oneof's member; -1 = it has none.
func fieldOf(m protoreflect.Message, fd protoreflect.FieldDescriptor) (index int, wrapper reflect.Type) {
	m = m.New()
	if oneof := fd.ContainingOneof(); oneof != nil && !oneof.IsSynthetic() {
		m.Set(fd, m.NewField(fd))
	}
	s := reflect.ValueOf(m.Interface()).Elem()
	for i := range s.NumField() {
		f := s.Type().Field(i)
		switch {
		case !f.IsExported():
		case fieldNumber(f) == fd.Number():
			return i, nil
		case f.Type.Kind() == reflect.Interface && !s.Field(i).IsNil():
			return i, s.Field(i).Elem().Type()
		}
	}
	return -1, nil
}

// A usageTally is the counts of one message.
type usageTally [usageCounts]struct {
	sum int // of the best alternative that has something; -1 = there is none
	alt int // this alternative
}

// fields reads a struct.
func (t *usageTally) fields(s reflect.Value, steps []usageStep) {
	var member reflect.Value // of the oneof that was looked at last
	var kind reflect.Type
	oneof := -1
	for i := range steps {
		st := &steps[i]
		if st.wrapper == nil {
			if f := s.Field(st.field); f.Kind() == reflect.Slice {
				for i := range f.Len() {
					t.field(f.Index(i), st, true)
				}
			} else {
				t.field(f, st, false)
			}
			continue
		}
		if oneof != st.field {
			oneof, member, kind = st.field, s.Field(st.field).Elem(), nil
			if member.IsValid() {
				kind = member.Type()
			}
		}
		if kind == st.wrapper {
			t.field(member.Elem().Field(0), st, true)
		}
	}
}

// field reads what a step leads to. A number that is 0 may be none.
func (t *usageTally) field(f reflect.Value, st *usageStep, set bool) {
	if f.Kind() == reflect.Pointer {
		if f.IsNil() {
			return
		}
		f, set = f.Elem(), true
	}
	if len(st.inner) > 0 {
		t.fields(f, st.inner)
		return
	}
	var n int64
	if f.CanUint() {
		n = int64(f.Uint())
	} else {
		n = f.Int()
	}
	switch {
	case n < 0 || n > math.MaxInt32:
		t.take(-1, true, st, false)
	case set || n != 0:
		t.take(int(n), n != 0, st, false)
	}
}

// message reads any message.
func (t *usageTally) message(s *source, m message, steps []usageStep) {
	for i := range steps {
		st := &steps[i]
		switch {
		case st.path.tensor():
			s.tensor(st.path[0].key, func(v value) { t.take(v.count(), v.num != 0 || v.text != "", st, false) })
		case len(st.inner) > 0:
			s.walk(m, st.path, kindMessage|kindEncoded, func(v value) { t.message(s, v.message(), st.inner) })
		default:
			s.walk(m, st.path, scalar, func(v value) {
				t.take(v.count(), v.num != 0 || v.text != "", st, s.typed == nil && !st.adds)
			})
		}
	}
}

// take takes in a number of tokens at the end of a path; -1 is none. An alternative counts if it is filled, or if it is the
// last. replaces is set if the number replaces those before.
func (t *usageTally) take(n int, filled bool, st *usageStep, replaces bool) {
	c := &t[st.count]
	switch {
	case st.alt > c.alt || !st.last && !filled:
		return
	case st.alt < c.alt || replaces:
		c.sum, c.alt = -1, st.alt
	}
	if n >= 0 {
		c.sum = min(max(c.sum, 0)+n, math.MaxInt32)
	}
}
