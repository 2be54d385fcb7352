package requestkey

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"

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
