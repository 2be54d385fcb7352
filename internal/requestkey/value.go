package requestkey

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// maxDepth is how deep a value is read. Each level reads what is inside once more.
const maxDepth = 32

// appendValue appends JSON that two values share if they are equal: members are in the order of their names, without
// spaces, and with one way to escape. What is cut or too deep stays as it is.
func (v jsonValue) appendValue(dst []byte, depth int) []byte {
	switch {
	case v.cut, depth == maxDepth:
		return append(dst, v.b...)
	case v.is('"'):
		s, _ := v.text()
		return appendQuoted(dst, s)
	case v.is('['):
		before := len(dst)
		dst = append(dst, '[')
		if !v.each("[]", func(_ string, element jsonValue) {
			dst = append(element.appendValue(dst, depth+1), ',')
		}) {
			return append(dst[:before], v.b...)
		}
		return append(bytes.TrimSuffix(dst, []byte{','}), ']')
	case v.is('{'):
		type member struct {
			name  string
			value jsonValue
		}
		var all []member
		if !v.each("{}", func(name string, value jsonValue) { all = append(all, member{name, value}) }) {
			return append(dst, v.b...)
		}
		slices.SortStableFunc(all, func(a, b member) int { return strings.Compare(a.name, b.name) })
		dst = append(dst, '{')
		for i, m := range all {
			if i+1 < len(all) && all[i+1].name == m.name { // the last one counts
				continue
			}
			dst = append(m.value.appendValue(append(appendQuoted(dst, m.name), ':'), depth+1), ',')
		}
		return append(bytes.TrimSuffix(dst, []byte{','}), '}')
	}
	return append(dst, v.b...)
}

// appendQuoted appends a text as a JSON string.
func appendQuoted(dst []byte, s string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string can be encoded
	return append(dst, bytes.TrimSuffix(b.Bytes(), []byte{'\n'})...)
}
