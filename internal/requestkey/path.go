package requestkey

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/internal/strict"
)

// A step leads from a message to one of its fields.
type step struct {
	num  protowire.Number // 0 where the step is a name
	name string           // "" where the step is a number
	list bool
	key  string // of a map or a tensor; "" = the field is neither
}

// A path is one alternative: the steps from a message to a value.
type path []step

func (p path) hasList() bool { return slices.ContainsFunc(p, func(st step) bool { return st.list }) }

// hasName reports whether it leads to a field by name.
func (p path) hasName() bool {
	return !p.tensor() && slices.ContainsFunc(p, func(st step) bool { return st.name != "" })
}

// tensor reports whether the path leads to an input tensor, whose name is the key.
func (p path) tensor() bool { return len(p) == 1 && p[0].name == "tensor" && p[0].key != "" }

// leads reports whether the path leads to a field of the wanted kinds in messages of a type.
func (p path) leads(d protoreflect.MessageDescriptor, want kind) bool {
	var holds protoreflect.FieldDescriptor
	for i := range p {
		if d == nil {
			return false
		}
		if _, holds = p[i].in(d); holds == nil {
			return false
		}
		d = holds.Message()
	}
	return want&kinds[holds.Kind()] != 0
}

// stepForm is a step, and what separates it from the next or the alternative from the next.
var stepForm = regexp.MustCompile(`^(?:(\d+)|([A-Za-z_]\w*))(\[([^\]]*)\])?([.|]|$)`)

// parsePath returns the alternatives of a path, the best first.
func parsePath(p dialect.Path) (alts []path, err error) {
	var steps path
	for rest, more := string(p), p != ""; more; {
		form := stepForm.FindStringSubmatch(rest)
		if form == nil {
			return nil, fmt.Errorf("%q: at %q: want a field number or name, [] behind a list, [key] behind a map, "+
				". before the next, | before an alternative", string(p), rest)
		}
		st := step{name: form[2], key: form[4], list: form[3] == "[]"}
		if form[1] != "" {
			n, err := strconv.ParseInt(form[1], 10, 32)
			if st.num = protowire.Number(n); err != nil || !st.num.IsValid() {
				return nil, fmt.Errorf("%q: %q is no field number", string(p), form[1])
			}
		}
		steps = append(steps, st)
		if rest, more = rest[len(form[0]):], form[5] != ""; form[5] != "." {
			alts, steps = append(alts, steps), nil
		}
	}
	return alts, nil
}

// A patch is wire bytes that are appended to an encoded message. Two encoded messages of one type, one behind the
// other, are the two merged: of a scalar the last one counts, messages merge, and lists are joined. So a request gets
// fields without its generated type, and without a second encoding.

// number appends an integer that stands at the place to a patch: of a field of any type but sint, fixed and float.
func (p *place) number(patch []byte, n int64) []byte {
	return p.target().append(patch, protowire.AppendVarint(nil, uint64(n)), protowire.VarintType)
}

// bytes appends a string, bytes or an encoded message that stands at the place to a patch.
func (p *place) bytes(patch, b []byte) []byte {
	return p.target().append(patch, protowire.AppendBytes(nil, b), protowire.BytesType)
}

// numbers appends integers to a list that stands at the place.
func (p *place) numbers(patch []byte, list []uint32) []byte {
	var packed []byte
	for _, n := range list {
		packed = protowire.AppendVarint(packed, uint64(n))
	}
	return p.bytes(patch, packed)
}

// target is where a patch writes: the first alternative.
func (p *place) target() path { return p.alts[0] }

// checkTarget returns an error unless a patch can write to each place that a path leads to first.
func (p *place) checkTarget(of dialect.Path) error {
	bad := len(p.alts) > 0 && slices.ContainsFunc(p.target(), func(st step) bool { return st.num == 0 || st.list })
	return strict.Want(!bad, "%q: it is written too: want field numbers, and no list on the way", of)
}

// append appends a field with an encoded value to a patch.
func (p path) append(patch, value []byte, kind protowire.Type) []byte {
	for i := len(p) - 1; i >= 0; i-- {
		st := &p[i]
		if st.key != "" { // an entry of a map
			value = append(protowire.AppendTag(nil, 2, kind), value...)
			key := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), st.key)
			value, kind = protowire.AppendBytes(nil, append(key, value...)), protowire.BytesType
		}
		value = append(protowire.AppendTag(nil, st.num, kind), value...)
		if i > 0 {
			value, kind = protowire.AppendBytes(nil, value), protowire.BytesType
		}
	}
	return append(patch, value...)
}

// MaxTokens returns the bound of output tokens in a request message, 0 where it has none or the dialect does not say
// where it stands.
func (m *Method) MaxTokens(msg any) int {
	defer harmless()
	s := open(msg, m.named, false)
	return max(m.maxTokens.count(&s), 0)
}
