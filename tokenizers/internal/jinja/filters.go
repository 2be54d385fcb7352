package jinja

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

type builtin func(m *machine, v value, g given) (value, error)

// filters are those of Jinja2 that templates for chats use.
var filters map[string]builtin

func init() {
	filters = map[string]builtin{
		"abs": absolute, "capitalize": of1(capitalize), "count": size, "d": fallback, "default": fallback, "dictsort": dictsort,
		"first": first, "float": toFloat, "format": formatted, "indent": indent, "int": toInt, "items": items, "join": join, "last": last,
		"length": size, "list": toList, "lower": of1(lower), "map": mapped, "max": extreme(1), "min": extreme(-1),
		"reject": chosen(false, false), "rejectattr": chosen(false, true), "replace": replace, "reverse": reverse, "safe": safe,
		"select": chosen(true, false), "selectattr": chosen(true, true), "sort": sorted, "string": toText, "sum": total,
		"title": of1(titleFilter), "tojson": tojson, "trim": trim, "unique": unique, "upper": of1(upper),
	}
}

// of1 makes a filter of a function of a text.
func of1(f func(s string) (string, error)) builtin {
	return func(m *machine, v value, g given) (value, error) {
		if _, err := g.bind(); err != nil {
			return nil, err
		}
		s, err := m.str(v)
		if err != nil {
			return nil, err
		}
		if s, err = f(s); err != nil {
			return nil, err
		}
		return s, m.grow(len(s))
	}
}

func ascii(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) < 0
}

func lower(s string) (string, error) {
	if ascii(s) {
		return strings.ToLower(s), nil
	}
	return cases.Lower(language.Und).String(s), nil
}

func upper(s string) (string, error) {
	if ascii(s) {
		return strings.ToUpper(s), nil
	}
	return cases.Upper(language.Und).String(s), nil
}

var errLetters = unsupported("the case of words with letters that are not ASCII")

func capitalize(s string) (string, error) {
	if !ascii(s) {
		return "", errLetters
	}
	if s == "" {
		return "", nil
	}
	return strings.ToUpper(s[:1]) + strings.ToLower(s[1:]), nil
}

// titled writes each word with a capital; a word begins where starts says so of the character ahead of it.
func titled(s string, starts func(c byte) bool) (string, error) {
	if !ascii(s) {
		return "", errLetters
	}
	s = strings.ToLower(s)
	b := []byte(s)
	for i, c := range b {
		if (i == 0 || starts(s[i-1])) && c >= 'a' && c <= 'z' {
			b[i] -= 'a' - 'A'
		}
	}
	return string(b), nil
}

func titleFilter(s string) (string, error) {
	return titled(s, func(c byte) bool { return c == '-' || isSpace(rune(c)) || strings.IndexByte("({[<", c) >= 0 })
}

func titleMethod(s string) (string, error) {
	return titled(s, func(c byte) bool { return c < 'a' || c > 'z' })
}

func absolute(_ *machine, v value, g given) (value, error) {
	if _, err := g.bind(); err != nil {
		return nil, err
	}
	n, f, whole, ok := number(v)
	switch {
	case !ok:
		return nil, defined(v, mistake("the absolute value", v))
	case whole && n == math.MinInt64:
		return nil, errLarge
	case whole:
		return max(n, -n), nil
	}
	return math.Abs(f), nil
}

func size(m *machine, v value, g given) (value, error) {
	if _, err := g.bind(); err != nil {
		return nil, err
	}
	return m.length(v)
}

func fallback(_ *machine, v value, g given) (value, error) {
	a, err := g.bind("default_value", "boolean")
	if err != nil {
		return nil, err
	}
	if _, is := v.(undefined); is || truth(or(a[1], false)) && !truth(v) {
		return or(a[0], ""), nil
	}
	return v, nil
}

func first(m *machine, v value, g given) (value, error) {
	if _, err := g.bind(); err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case *generator:
		if v.fails != nil || len(v.items) == 0 {
			return undefined{"the first item"}, v.fails
		}
		x := v.items[0]
		v.items = v.items[1:]
		return x, nil
	case string:
		return m.character(v, 0, undefined{"the first item"})
	}
	all, err := m.each(v)
	if err != nil || len(all) == 0 {
		return undefined{"the first item"}, err
	}
	return all[0], nil
}

func last(m *machine, v value, g given) (value, error) {
	if _, err := g.bind(); err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case *generator:
		return nil, mistake("the last item", v)
	case string:
		return m.character(v, -1, undefined{"the last item"})
	}
	all, err := m.each(v)
	if err != nil || len(all) == 0 {
		return undefined{"the last item"}, err
	}
	return all[len(all)-1], nil
}

func toText(m *machine, v value, g given) (value, error) {
	if _, err := g.bind(); err != nil {
		return nil, err
	}
	if s, is := v.(markup); is {
		return s, nil
	}
	return m.str(v)
}

func safe(m *machine, v value, g given) (value, error) {
	if _, err := g.bind(); err != nil {
		return nil, err
	}
	s, err := m.str(v)
	return markup(s), err
}

var errDigits = unsupported("a number with other digits than 0 to 9")

// otherDigits reports whether Python may read a text as a number that Go does not read.
func otherDigits(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r == '_' || r >= utf8.RuneSelf && unicode.IsDigit(r) })
}

// parseInt reads a text as Python's int does.
func parseInt(s string) (n int64, ok bool, err error) {
	s = strings.TrimFunc(s, isSpace)
	n, err = strconv.ParseInt(s, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, false, errLarge
	case err != nil && otherDigits(s):
		return 0, false, errDigits
	}
	return n, err == nil, nil
}

func parseFloat(s string) (f float64, ok bool, err error) {
	s = strings.TrimFunc(s, isSpace)
	if otherDigits(s) {
		return 0, false, errDigits
	}
	if strings.ContainsAny(s, "xX") {
		return 0, false, nil
	}
	f, e := strconv.ParseFloat(s, 64)
	return f, e == nil || errors.Is(e, strconv.ErrRange), nil
}

func toInt(_ *machine, v value, g given) (value, error) {
	a, err := g.bind("default", "base")
	if err != nil {
		return nil, err
	}
	if or(a[1], int64(10)) != value(int64(10)) {
		return nil, unsupported("another base than 10")
	}
	n, f, whole, ok := number(v)
	if s, is := v.(string); is {
		if n, whole, err = parseInt(s); err == nil && !whole {
			f, ok, err = parseFloat(s)
		}
	} else if u, is := v.(undefined); is {
		return nil, u.use()
	}
	switch {
	case err != nil:
		return nil, err
	case whole:
		return n, nil
	case !ok || f != f:
		return or(a[0], int64(0)), nil
	case math.Abs(f) >= 1<<63:
		return nil, errLarge
	}
	return int64(f), nil
}

func toFloat(_ *machine, v value, g given) (value, error) {
	a, err := g.bind("default")
	if err != nil {
		return nil, err
	}
	_, f, _, ok := number(v)
	if s, is := v.(string); is {
		f, ok, err = parseFloat(s)
	} else if u, is := v.(undefined); is {
		return nil, u.use()
	}
	if !ok {
		return or(a[0], 0.0), err
	}
	return f, err
}

func toList(m *machine, v value, g given) (value, error) {
	if _, err := g.bind(); err != nil {
		return nil, err
	}
	all, err := m.each(v)
	if err != nil {
		return nil, err
	}
	return m.list(kindList, all)
}

func formatted(m *machine, v value, g given) (value, error) {
	if len(g.names) > 0 {
		return nil, unsupported("a format with named values")
	}
	s, err := m.str(v)
	if err != nil {
		return nil, err
	}
	return m.format(s, &list{kind: kindTuple, items: g.plain})
}

func items(m *machine, v value, g given) (value, error) {
	if _, err := g.bind(); err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case undefined:
		return &generator{}, nil
	case *dict:
		l, err := m.pairs(v)
		if err != nil {
			return nil, err
		}
		return &generator{items: l.items}, nil
	}
	return &generator{fails: mistake("the items", v)}, nil
}

// pairs returns the keys and values of a dict.
func (m *machine) pairs(d *dict) (*list, error) {
	if err := d.ordered(); err != nil {
		return nil, err
	}
	all := make([]value, len(d.keys))
	for i, k := range d.keys {
		pair, err := m.list(kindTuple, []value{k, d.values[i]})
		if err != nil {
			return nil, err
		}
		all[i] = pair
	}
	return m.list(kindView, all)
}

// member returns what an attribute like a.0.b leads to.
func (m *machine) member(v value, path value, otherwise value) (value, error) {
	if _, is := path.(missing); is || path == nil {
		return v, nil
	}
	s, is := path.(string)
	if !is {
		return m.item(v, path)
	}
	for part := range strings.SplitSeq(s, ".") {
		var index value = part
		if n, ok, _ := parseInt(part); ok && digits(part) == len(part) {
			index = n
		}
		var err error
		if v, err = m.item(v, index); err != nil {
			return nil, err
		}
		if _, is := v.(undefined); is && otherwise != nil {
			v = otherwise
		}
	}
	return v, nil
}

// folded returns a value as sorting takes it.
func folded(v value, exactly value) (value, error) {
	if s, is := v.(string); is && !truth(or(exactly, false)) {
		return lower(s)
	}
	return v, nil
}

// keyed returns the values with what they are sorted by.
func (m *machine) keyed(v value, attribute, exactly value) (all []value, keys []value, err error) {
	if all, err = m.each(v); err != nil {
		return nil, nil, err
	}
	if s, is := attribute.(string); is && strings.Contains(s, ",") {
		return nil, nil, unsupported("sorting by several attributes")
	}
	for _, x := range all {
		k, err := m.member(x, attribute, nil)
		if err == nil {
			k, err = folded(k, exactly)
		}
		if err != nil {
			return nil, nil, err
		}
		keys = append(keys, k)
	}
	return all, keys, m.grow(16 * len(all))
}

// order sorts values by keys, stably.
func (m *machine) order(all, keys []value, backwards bool) (value, error) {
	at := make([]int, len(all))
	for i := range at {
		at[i] = i
	}
	var failed error
	slices.SortStableFunc(at, func(i, k int) int {
		if failed != nil {
			return 0
		}
		c, err := m.compare(keys[i], keys[k])
		failed = cmp.Or(failed, err)
		if backwards {
			return -c
		}
		return c
	})
	if failed != nil {
		return nil, failed
	}
	sorted := make([]value, len(all))
	for i, k := range at {
		sorted[i] = all[k]
	}
	return m.list(kindList, sorted)
}

func sorted(m *machine, v value, g given) (value, error) {
	a, err := g.bind("reverse", "case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	all, keys, err := m.keyed(v, a[2], a[1])
	if err != nil {
		return nil, err
	}
	return m.order(all, keys, truth(or(a[0], false)))
}

func dictsort(m *machine, v value, g given) (value, error) {
	a, err := g.bind("case_sensitive", "by", "reverse")
	if err != nil {
		return nil, err
	}
	d, is := v.(*dict)
	if !is {
		return nil, defined(v, mistake("the items", v))
	}
	known := *d
	known.unordered = false // equal keys are ordered alike by sorting twice
	l, err := m.pairs(&known)
	if err != nil {
		return nil, err
	}
	if d.unordered && or(a[1], "key") != value("key") {
		return nil, d.ordered()
	}
	place := int64(0)
	switch or(a[1], "key") {
	case value("key"):
	case value("value"):
		place = 1
	default:
		return nil, errors.New("a dictionary is sorted by key or value")
	}
	if d.unordered {
		sorted, err := m.order(l.items, anys(known.keys), false)
		if err != nil {
			return nil, err
		}
		l = sorted.(*list)
	}
	all, keys, err := m.keyed(l, place, a[0])
	if err != nil {
		return nil, err
	}
	return m.order(all, keys, truth(or(a[2], false)))
}

func anys(all []string) []value {
	values := make([]value, len(all))
	for i, s := range all {
		values[i] = s
	}
	return values
}

func unique(m *machine, v value, g given) (value, error) {
	a, err := g.bind("case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	all, keys, err := m.keyed(v, a[1], a[0])
	if err != nil {
		return nil, err
	}
	var left, seen []value
	for i, x := range all {
		if depthOf(keys[i]) > 0 {
			return nil, unsupported("unique lists")
		}
		known, err := m.contains(&list{items: seen}, keys[i])
		if err != nil {
			return nil, err
		}
		if !known {
			left, seen = append(left, x), append(seen, keys[i])
		}
	}
	return &generator{items: left}, nil
}

// extreme is min and max: the first of those that are equal.
func extreme(sign int) builtin {
	return func(m *machine, v value, g given) (value, error) {
		a, err := g.bind("case_sensitive", "attribute")
		if err != nil {
			return nil, err
		}
		all, keys, err := m.keyed(v, a[1], a[0])
		if err != nil || len(all) == 0 {
			return undefined{"the largest or smallest item"}, err
		}
		best := 0
		for i := range all {
			c, err := m.compare(keys[i], keys[best])
			if err != nil {
				return nil, err
			}
			if c*sign > 0 {
				best = i
			}
		}
		return all[best], nil
	}
}

func total(m *machine, v value, g given) (value, error) {
	a, err := g.bind("attribute", "start")
	if err != nil {
		return nil, err
	}
	all, err := m.each(v)
	if err != nil {
		return nil, err
	}
	sum := or(a[1], int64(0))
	if _, is := sum.(string); is {
		return nil, errors.New("the sum of texts")
	}
	for _, x := range all {
		if x, err = m.member(x, a[0], nil); err == nil {
			sum, err = m.calculate("+", sum, x)
		}
		if err != nil {
			return nil, err
		}
	}
	return sum, nil
}

func join(m *machine, v value, g given) (value, error) {
	a, err := g.bind("d", "attribute")
	if err != nil {
		return nil, err
	}
	all, err := m.each(v)
	if err != nil {
		return nil, err
	}
	between, err := m.str(or(a[0], ""))
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	for i, x := range all {
		if x, err = m.member(x, a[1], nil); err != nil {
			return nil, err
		}
		s, err := m.str(x)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			s = between + s
		}
		if b.WriteString(s); m.grow(len(s)) != nil {
			return nil, m.grow(0)
		}
	}
	return b.String(), nil
}

func trim(m *machine, v value, g given) (value, error) {
	a, err := g.bind("chars")
	if err != nil {
		return nil, err
	}
	s, err := m.str(v)
	if err != nil {
		return nil, err
	}
	return stripped(m, s, or(a[0], nil), true, true)
}

func replace(m *machine, v value, g given) (value, error) {
	a, err := g.bind("old", "new", "count")
	if err != nil {
		return nil, err
	}
	s, err := m.str(v)
	if err != nil {
		return nil, err
	}
	var parts [2]string
	for i := range parts {
		if _, absent := a[i].(missing); absent {
			return nil, errors.New("replace takes two texts")
		}
		if parts[i], err = m.str(a[i]); err != nil {
			return nil, err
		}
	}
	n := int64(-1)
	if count := or(a[2], nil); count != nil {
		whole := false
		if n, _, whole, _ = number(count); !whole {
			return nil, defined(count, mistake("a count", count))
		}
	}
	return replaced(m, s, parts[0], parts[1], n)
}

// replaced replaces the first n, or all if n is negative.
func replaced(m *machine, s, from, to string, n int64) (value, error) {
	count := int64(strings.Count(s, from))
	if n >= 0 {
		count = min(count, n)
	}
	if err := m.grow(len(s)); err != nil {
		return nil, err
	}
	if high, low := bitsMul(count, int64(len(to))); high || low > maxBytes {
		return nil, errBytes
	}
	return strings.Replace(s, from, to, int(count)), m.grow(int(count) * len(to))
}

// bitsMul multiplies two numbers that are not negative.
func bitsMul(a, b int64) (large bool, product int64) {
	if a > 0 && b > math.MaxInt64/a {
		return true, 0
	}
	return false, a * b
}

func reverse(m *machine, v value, g given) (value, error) {
	if _, err := g.bind(); err != nil {
		return nil, err
	}
	all, err := m.each(v)
	if err != nil {
		return nil, err
	}
	all = slices.Clone(all)
	slices.Reverse(all)
	switch v := v.(type) {
	case string:
		var b strings.Builder
		for _, x := range all {
			b.WriteString(x.(string))
		}
		return b.String(), m.grow(b.Len())
	case *generator, undefined:
		return m.list(kindList, all)
	default:
		_ = v
		return &generator{items: all}, m.grow(16 * len(all))
	}
}

func indent(m *machine, v value, g given) (value, error) {
	a, err := g.bind("width", "first", "blank")
	if err != nil {
		return nil, err
	}
	s, is := v.(string)
	if !is {
		return nil, defined(v, mistake("the lines", v))
	}
	by, is := or(a[0], int64(4)).(string)
	if !is {
		n, _, whole, _ := number(or(a[0], int64(4)))
		if !whole {
			return nil, mistake("a width", a[0])
		}
		if n > 1000 {
			return nil, unsupported("a width of more than 1000")
		}
		by = strings.Repeat(" ", int(max(n, 0)))
	}
	lines := splitLines(s+"\n", false)
	if large, n := bitsMul(int64(len(lines)), int64(len(by)+1)); large || n > maxBytes {
		return nil, errBytes
	} else if err := m.grow(len(s) + int(n)); err != nil {
		return nil, err
	}
	for i := range lines {
		if i > 0 && (lines[i] != "" || truth(or(a[2], false))) || i == 0 && truth(or(a[1], false)) {
			lines[i] = by + lines[i]
		}
	}
	return strings.Join(lines, "\n"), nil
}

// splitLines is Python's splitlines.
func splitLines(s string, keep bool) (lines []string) {
	for s != "" {
		i := strings.IndexFunc(s, func(r rune) bool {
			return r >= '\n' && r <= '\r' || r >= 0x1C && r <= 0x1E || r == 0x85 || r == 0x2028 || r == 0x2029
		})
		if i < 0 {
			return append(lines, s)
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		if strings.HasPrefix(s[i:], "\r\n") {
			n = 2
		}
		end := i
		if keep {
			end += n
		}
		lines, s = append(lines, s[:end]), s[i+n:]
	}
	return lines
}

// mapped is the filter map.
func mapped(m *machine, v value, g given) (value, error) {
	all, err := m.each(v)
	if err != nil {
		return nil, err
	}
	var do func(x value) (value, error)
	if len(g.plain) == 0 {
		a, err := g.bind("attribute", "default")
		if err != nil {
			return nil, err
		}
		if _, absent := a[0].(missing); absent {
			return nil, errors.New("map takes a filter or an attribute")
		}
		do = func(x value) (value, error) { return m.member(x, a[0], or(a[1], nil)) }
	} else {
		name, _ := g.plain[0].(string)
		if filters[name] == nil {
			return nil, unsupported("that filter in map")
		}
		rest := given{plain: g.plain[1:], names: g.names, named: g.named}
		do = func(x value) (value, error) { return m.filter(name, x, rest) }
	}
	made := make([]value, len(all))
	for i, x := range all {
		if err := m.deeper(); err != nil {
			return nil, err
		}
		made[i], err = do(x)
		if m.calls--; err != nil {
			return nil, err
		}
	}
	return &generator{items: made}, m.grow(16 * len(all))
}

// chosen is select and its like: values, or those of an attribute, that a test holds for or does not.
func chosen(want, attribute bool) builtin {
	return func(m *machine, v value, g given) (value, error) {
		all, err := m.each(v)
		if err != nil {
			return nil, err
		}
		args := g.plain
		var path value = missing{}
		if attribute {
			if len(args) == 0 {
				return nil, errors.New("selectattr takes an attribute")
			}
			path, args = args[0], args[1:]
		}
		test := func(x value) (bool, error) { return truth(x), nil }
		if len(args) > 0 {
			name, _ := args[0].(string)
			if tests[name] == nil {
				return nil, unsupported("that test in select or reject")
			}
			test = func(x value) (bool, error) {
				return m.test(name, x, given{plain: args[1:], names: g.names, named: g.named})
			}
		} else if len(g.names) > 0 {
			return nil, fmt.Errorf("an unexpected argument %s", g.names[0])
		}
		var left []value
		for _, x := range all {
			part, err := m.member(x, path, nil)
			if err != nil {
				return nil, err
			}
			is, err := test(part)
			if err != nil {
				return nil, err
			}
			if is == want {
				left = append(left, x)
			}
		}
		return &generator{items: left}, m.grow(16 * len(left))
	}
}
