package jinja

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A value is nil (None), a bool, an int64, a float64, a string, or one of the types below. Values do not change, but for
// a namespace and a generator.
type value = any

// unsupported is what Jinja2 can do and this package cannot. A template for which that shows at dial is refused.
type unsupported string

func (u unsupported) Error() string { return "jinja: " + string(u) + " is not supported" }

// undefined is what a name or a member that is not there stands for.
type undefined struct{ name string }

func (u undefined) use() error { return fmt.Errorf("%q is undefined", u.name) }

// markup is a text that the filter safe has marked. It can be written, and nothing else.
type markup string

// maxDepth bounds how deep lists and dictionaries are nested, so that walking them ends.
const maxDepth = 100

// A list is a sequence of values.
type list struct {
	kind  listKind
	items []value
	depth int
}

type listKind byte

const (
	kindList listKind = iota
	kindTuple
	kindRange
	kindView // the items, keys or values of a dictionary
)

// A dict is a dictionary in the order of its keys.
type dict struct {
	keys   []string
	values []value
	index  map[string]int // of many keys
	depth  int

	// unordered: the order of its keys is not known, so that what depends on it is refused.
	unordered bool
}

// many is from how many keys on a dict has an index.
const many = 9

func (d *dict) find(key string) int {
	if d.index != nil {
		if i, ok := d.index[key]; ok {
			return i
		}
		return -1
	}
	return slices.Index(d.keys, key)
}

func (d *dict) get(key string) (value, bool) {
	if i := d.find(key); i >= 0 {
		return d.values[i], true
	}
	return nil, false
}

// put adds a value to a dict that nothing else refers to yet.
func (d *dict) put(key string, v value) {
	d.depth = max(d.depth, depthOf(v)+1)
	if i := d.find(key); i >= 0 {
		d.values[i] = v
		return
	}
	d.keys, d.values = append(d.keys, key), append(d.values, v)
	if len(d.keys) == many {
		d.index = make(map[string]int)
		for i, k := range d.keys {
			d.index[k] = i
		}
	} else if d.index != nil {
		d.index[key] = len(d.keys) - 1
	}
}

// ordered fails if the order of the keys matters and is not known.
func (d *dict) ordered() error {
	if d.unordered && len(d.keys) > 1 {
		return unsupported("a walk over the members of a message, whose order is not known,")
	}
	return nil
}

// A namespace has attributes that a template can set.
type namespace struct{ dict }

// A generator gives its values once.
type generator struct {
	items []value
	fails error // what it ends with as soon as it is used
}

// A method is a function, with the value that it belongs to.
type method struct {
	of value
	do func(m *machine, of value, a given) (value, error)
}

// given are the arguments of a call.
type given struct {
	plain []value
	names []string
	named []value
}

// missing stands for an argument that is not given.
type missing struct{}

// bind returns the arguments by their names, missing for those that are not given.
func (g given) bind(names ...string) ([]value, error) {
	all := make([]value, len(names))
	for i := range all {
		all[i] = missing{}
	}
	if copy(all, g.plain); len(g.plain) > len(names) {
		return nil, fmt.Errorf("a call has %d arguments where %d are possible", len(g.plain), len(names))
	}
	for i, name := range g.names {
		at := slices.Index(names, name)
		if at < 0 || at < len(g.plain) {
			return nil, fmt.Errorf("a call has an unexpected argument %s", name)
		}
		all[at] = g.named[i]
	}
	return all, nil
}

// or returns an argument, or what stands for it if it is missing.
func or(argument, otherwise value) value {
	if _, is := argument.(missing); is {
		return otherwise
	}
	return argument
}

func depthOf(v value) int {
	switch v := v.(type) {
	case *list:
		return v.depth
	case *dict:
		return v.depth
	}
	return 0
}

// list returns a list of items.
func (m *machine) list(kind listKind, items []value) (*list, error) {
	l := &list{kind: kind, items: items}
	for _, v := range items {
		l.depth = max(l.depth, depthOf(v)+1)
	}
	return l, m.fits(l.depth, len(items))
}

// fits charges for a list or a dict.
func (m *machine) fits(depth, n int) error {
	if depth > maxDepth {
		return errDepth
	}
	return m.grow(16 * (n + 1))
}

// words returns texts as a list.
func (m *machine) words(kind listKind, all []string) (value, error) {
	items := make([]value, len(all))
	for i, s := range all {
		items[i] = s
	}
	return m.list(kind, items)
}

// of turns a value of Go into one of a template. Maps have no order.
func of(v any, depth int) (value, error) {
	if depth > maxDepth {
		return nil, errDepth
	}
	switch v := v.(type) {
	case nil, bool, string, int64, float64, *list, *dict:
		return v, nil
	case []any:
		l := &list{depth: 1}
		for _, x := range v {
			x, err := of(x, depth+1)
			if err != nil {
				return nil, err
			}
			l.items, l.depth = append(l.items, x), max(l.depth, depthOf(x)+1)
		}
		return l, nil
	case map[string]any:
		d := &dict{unordered: true}
		for k, x := range v {
			x, err := of(x, depth+1)
			if err != nil {
				return nil, err
			}
			d.put(k, x)
		}
		return d, nil
	}
	return nil, fmt.Errorf("jinja: a value of type %T", v)
}

func typeName(v value) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64:
		return "int"
	case float64:
		return "float"
	case string, markup:
		return "str"
	case *list:
		return [...]string{"list", "tuple", "range", "dict_items"}[v.kind]
	case *dict:
		return "dict"
	case undefined:
		return "Undefined"
	case *namespace:
		return "Namespace"
	case *generator:
		return "generator"
	}
	return "function"
}

// mistake is Python's TypeError.
func mistake(what string, v value) error { return fmt.Errorf("%s of a %s", what, typeName(v)) }

// truth tells whether a condition holds.
func truth(v value) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case markup:
		return v != ""
	case *list:
		return len(v.items) > 0
	case *dict:
		return len(v.keys) > 0
	}
	return true
}

// length is Python's len.
func (m *machine) length(v value) (int64, error) {
	switch v := v.(type) {
	case string:
		return int64(utf8.RuneCountInString(v)), m.charge(len(v) / 16)
	case *list:
		return int64(len(v.items)), nil
	case *dict:
		return int64(len(v.keys)), nil
	case undefined:
		return 0, nil
	case *iteration:
		return int64(len(v.items)), nil
	}
	return 0, mistake("the length", v)
}

// each returns the values of what can be walked over.
func (m *machine) each(v value) ([]value, error) {
	switch v := v.(type) {
	case *list:
		return v.items, m.charge(len(v.items))
	case *generator:
		items := v.items
		v.items = nil
		if v.fails != nil {
			return nil, v.fails
		}
		return items, m.charge(len(items))
	case *dict:
		if err := v.ordered(); err != nil {
			return nil, err
		}
		l, err := m.words(kindList, v.keys)
		if err != nil {
			return nil, err
		}
		return l.(*list).items, nil
	case undefined:
		return nil, nil
	case string:
		if err := m.grow(len(v) * 16); err != nil {
			return nil, err
		}
		items := make([]value, 0, len(v))
		for i := 0; i < len(v); {
			_, n := utf8.DecodeRuneInString(v[i:])
			items = append(items, v[i:i+n])
			i += n
		}
		return items, m.charge(len(v))
	case *iteration, markup:
		return nil, unsupported("a walk over " + typeName(v))
	}
	return nil, mistake("a walk over the members", v)
}

// number returns a number as Python's arithmetic takes it; ok is false if v is none.
func number(v value) (n int64, f float64, whole, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			n = 1
		}
		return n, float64(n), true, true
	case int64:
		return v, float64(v), true, true
	case float64:
		return 0, v, false, true
	}
	return 0, 0, false, false
}

// exact is up to where all whole numbers are float64.
const exact = 1 << 53

// compareNumbers compares two numbers.
func compareNumbers(a, b value) (c int, ok bool, err error) {
	n, f, whole, ok1 := number(a)
	k, g, both, ok2 := number(b)
	switch {
	case !ok1 || !ok2:
		return 0, false, nil
	case whole && both:
		return compareOrdered(n, k), true, nil
	case f != f || g != g, whole && (n > exact || n < -exact), both && (k > exact || k < -exact):
		return 0, true, unsupported("a comparison of large or undefined numbers")
	}
	return compareOrdered(f, g), true, nil
}

func compareOrdered[T int64 | float64](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// equal is Python's ==.
func (m *machine) equal(a, b value) (bool, error) {
	if err := m.charge(1); err != nil {
		return false, err
	}
	if c, are, err := compareNumbers(a, b); are {
		return c == 0, err
	}
	switch x := a.(type) {
	case nil:
		return b == nil, nil
	case undefined:
		_, is := b.(undefined)
		return is, nil
	case string:
		y, is := b.(string)
		if is && len(x) == len(y) {
			return x == y, m.charge(len(x) / 16)
		}
		if _, is := b.(markup); is {
			return false, unsupported("a comparison with a safe text")
		}
		return false, nil
	case *list:
		y, is := b.(*list)
		if !is || x.kind != y.kind || len(x.items) != len(y.items) && x.kind != kindView {
			return false, nil
		}
		if x.kind == kindView {
			return false, unsupported("a comparison of the members of dictionaries")
		}
		for i := range x.items {
			if same, err := m.equal(x.items[i], y.items[i]); !same || err != nil {
				return false, err
			}
		}
		return true, nil
	case *dict:
		y, is := b.(*dict)
		if !is || len(x.keys) != len(y.keys) {
			return false, nil
		}
		for i, k := range x.keys {
			v, has := y.get(k)
			if !has {
				return false, nil
			}
			if same, err := m.equal(x.values[i], v); !same || err != nil {
				return false, err
			}
		}
		return true, nil
	case bool, int64, float64:
		return false, nil
	case *namespace:
		return a == b, nil
	}
	return false, unsupported("a comparison of a " + typeName(a))
}

// compare orders two values, for < and for sorting.
func (m *machine) compare(a, b value) (int, error) {
	if err := m.charge(1); err != nil {
		return 0, err
	}
	if c, are, err := compareNumbers(a, b); are {
		return c, err
	}
	switch x := a.(type) {
	case string:
		if y, is := b.(string); is {
			return strings.Compare(x, y), m.charge(min(len(x), len(y)) / 16)
		}
	case *list:
		y, is := b.(*list)
		if !is || x.kind != y.kind || x.kind > kindTuple {
			break
		}
		for i := range min(len(x.items), len(y.items)) {
			if same, err := m.equal(x.items[i], y.items[i]); err != nil {
				return 0, err
			} else if !same {
				return m.compare(x.items[i], y.items[i])
			}
		}
		return compareOrdered(int64(len(x.items)), int64(len(y.items))), nil
	case undefined:
		return 0, x.use()
	}
	if u, is := b.(undefined); is {
		return 0, u.use()
	}
	return 0, fmt.Errorf("a %s is compared with a %s", typeName(a), typeName(b))
}

// contains is Python's in.
func (m *machine) contains(all, v value) (bool, error) {
	switch all := all.(type) {
	case string:
		s, is := v.(string)
		if !is {
			return false, mistake("a search in a text", v)
		}
		return strings.Contains(all, s), m.charge(len(all) / 8)
	case *dict:
		s, is := v.(string)
		if is {
			return all.find(s) >= 0, nil
		}
		if depthOf(v) > 0 {
			return false, mistake("a search in a dictionary", v)
		}
		return false, nil
	case *list:
		for _, x := range all.items {
			if same, err := m.equal(x, v); same || err != nil {
				return same, err
			}
		}
		return false, nil
	case undefined:
		return false, nil
	case *generator, markup:
		return false, unsupported("a search in a " + typeName(all))
	}
	return false, mistake("a search", all)
}

// str is Python's str.
func (m *machine) str(v value) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case markup:
		return string(v), nil
	case undefined:
		return "", nil
	}
	var b strings.Builder
	err := m.repr(&b, v)
	return b.String(), err
}

// repr is Python's repr.
func (m *machine) repr(b *strings.Builder, v value) error {
	before := b.Len()
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case bool:
		b.WriteString(map[bool]string{true: "True", false: "False"}[v])
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case float64:
		b.WriteString(float(v))
	case undefined:
		b.WriteString("Undefined")
	case string:
		if err := quote(b, v); err != nil {
			return err
		}
	case *list:
		if v.kind > kindTuple {
			return unsupported("the text of a " + typeName(v))
		}
		b.WriteByte("[("[v.kind])
		for i, x := range v.items {
			if i > 0 {
				b.WriteString(", ")
			}
			if err := m.repr(b, x); err != nil {
				return err
			}
		}
		if v.kind == kindTuple && len(v.items) == 1 {
			b.WriteByte(',')
		}
		b.WriteByte("])"[v.kind])
	case *dict:
		if err := v.ordered(); err != nil {
			return err
		}
		b.WriteByte('{')
		for i, k := range v.keys {
			if i > 0 {
				b.WriteString(", ")
			}
			if err := quote(b, k); err != nil {
				return err
			}
			b.WriteString(": ")
			if err := m.repr(b, v.values[i]); err != nil {
				return err
			}
		}
		b.WriteByte('}')
	default:
		return unsupported("the text of a " + typeName(v))
	}
	if depthOf(v) > 0 {
		return m.charge(1)
	}
	return m.grow(b.Len() - before)
}

// quote writes a text as Python's repr does.
func quote(b *strings.Builder, s string) error {
	q := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		q = '"'
	}
	b.WriteByte(q)
	for _, r := range s {
		switch i := strings.IndexRune("\n\r\t", r); {
		case i >= 0:
			b.WriteString([]string{`\n`, `\r`, `\t`}[i])
		case r == '\\' || r == rune(q):
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ' || r == 0x7F:
			fmt.Fprintf(b, `\x%02x`, r)
		case r >= utf8.RuneSelf && !unicode.IsOneOf([]*unicode.RangeTable{unicode.L, unicode.M, unicode.N, unicode.P, unicode.S}, r):
			return unsupported("the text of a list with characters that are not printable")
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte(q)
	return nil
}

// float writes a number as Python does.
func float(f float64) string {
	switch {
	case f != f:
		return "nan"
	case f > 1.7976931348623157e308:
		return "inf"
	case f < -1.7976931348623157e308:
		return "-inf"
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	mantissa, exponent, _ := strings.Cut(s, "e")
	if e, _ := strconv.Atoi(exponent); e < -4 || e >= 16 {
		return mantissa + "e" + exponent
	}
	s = strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// isSpace is Python's white space.
func isSpace(r rune) bool {
	return r <= ' ' && (r == ' ' || r >= '\t' && r <= '\r' || r >= 0x1C) || r == 0x85 || r >= 0xA0 && unicode.Is(unicode.Z, r) && r != 0x200B
}
