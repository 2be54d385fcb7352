package requestkey

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/warmpath/warmpath/balancer/dialect"
)

// A step leads from a message to one of its fields.
type step struct {
	num  protowire.Number // 0 where the step is a name
	name string           // "" where the step is a number
	list bool
	key  string // of a map or a tensor; "" = the field is neither
}

// in returns the field of a step and what it, or each place of its list or map, holds; nil where the type has no field
// that fits.
func (st *step) in(d protoreflect.MessageDescriptor) (fd, holds protoreflect.FieldDescriptor) {
	if fd = d.Fields().ByNumber(st.num); st.name != "" {
		fd = d.Fields().ByName(protoreflect.Name(st.name))
	}
	if fd == nil || fd.IsMap() != (st.key != "") || st.key != "" && fd.MapKey().Kind() != protoreflect.StringKind {
		return nil, nil
	}
	if st.key != "" {
		return fd, fd.MapValue()
	}
	return fd, fd
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

// A place is where a dialect finds something.
type place struct {
	want  kind
	plain bool   // text that is not printable is none
	alts  []path // the alternatives of a path, best first
}

// each calls take for what the best alternative that has something leads to, or else the last.
func (p *place) each(s *source, take func(value)) {
	for i, alt := range p.alts {
		found := i == len(p.alts)-1
		if !found {
			p.alternative(s, alt, func(v value) { found = found || p.filled(&v) })
		}
		if found {
			p.alternative(s, alt, take)
			return
		}
	}
}

// filled reports whether a value is something.
func (p *place) filled(v *value) bool {
	text := v.text != "" && (!p.plain || printable(v.text))
	return v.kind == kindMessage || v.kind != kindEnd && (text || v.num != 0 || len(v.ids) > 0)
}

// alternative calls take for what an alternative leads to. Of an encoded field that is not known to be a list the last
// value counts.
func (p *place) alternative(s *source, alt path, take func(value)) {
	switch {
	case alt.tensor():
		s.tensor(alt[0].key, take)
	case s.typed != nil || alt.hasList() || p.want&(kindMessage|kindEnd) != 0:
		s.walk(s.message, alt, p.want, take)
	default:
		var last value
		if s.walk(s.message, alt, p.want, func(v value) { last = v }) > 0 {
			take(last)
		}
	}
}

// first returns the first value that is something.
func (p *place) first(s *source) (first value) {
	p.each(s, func(v value) {
		if first.kind == 0 && p.filled(&v) {
			first = v
		}
	})
	return first
}

// fill sets dst, if it is empty, to the first text, in memory that nothing else writes to.
func (p *place) fill(dst *string, s *source) {
	v := p.first(s)
	text := v.string()
	if v.kind&(kindBytes|kindEncoded) != 0 {
		text = strings.Clone(text)
	}
	*dst = cmp.Or(*dst, text)
}

// count returns the number of tokens, -1 where there is none. What lists hold is added up.
func (p *place) count(s *source) int {
	sum := -1
	p.each(s, func(v value) {
		if n := v.count(); n >= 0 {
			sum = min(max(sum, 0)+n, math.MaxInt32)
		}
	})
	return sum
}

// leads reports whether some alternative leads to a field that can be read in messages of a type, or in what one of the
// paths in front leads to.
func (p *place) leads(d protoreflect.MessageDescriptor, front []path) bool {
	return slices.ContainsFunc(p.alts, func(alt path) bool {
		return alt.tensor() || slices.ContainsFunc(front, func(before path) bool {
			return slices.Concat(before, alt).leads(d, p.want)
		})
	})
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
