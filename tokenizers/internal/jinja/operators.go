package jinja

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

var (
	errLarge = unsupported("a number of more than 64 bits")
	errZero  = errors.New("a division by zero")
)

func (x *arithmetic) eval(m *machine, s *scope) (value, error) {
	a, err := m.eval(x.a, s)
	if err != nil {
		return nil, err
	}
	b, err := m.eval(x.b, s)
	if err != nil {
		return nil, err
	}
	return m.calculate(x.op, a, b)
}

// calculate does arithmetic with numbers, texts and lists.
func (m *machine) calculate(op string, a, b value) (value, error) {
	for _, v := range []value{a, b} {
		if _, is := v.(markup); is {
			return nil, unsupported("a sum with a safe text")
		}
	}
	if text, is := a.(string); is && op == "%" {
		return m.format(text, b)
	}
	if u, is := b.(undefined); is {
		return nil, u.use()
	}
	n, f, whole, ok := number(a)
	k, g, both, also := number(b)
	switch {
	case ok && also && whole && both && op != "/":
		return whole64(op, n, k)
	case ok && also:
		return floats(op, f, g)
	case op == "+":
		return m.sum(a, b)
	case op == "*" && both:
		return m.repeat(a, k)
	case op == "*" && whole:
		return m.repeat(b, n)
	}
	return nil, defined(a, fmt.Errorf("%s of a %s and a %s", op, typeName(a), typeName(b)))
}

func (m *machine) sum(a, b value) (value, error) {
	switch x := a.(type) {
	case string:
		if y, is := b.(string); is {
			return x + y, m.grow(len(x) + len(y))
		}
	case *list:
		if y, is := b.(*list); is && x.kind == y.kind && x.kind <= kindTuple {
			return m.list(x.kind, slices.Concat(x.items, y.items))
		}
	}
	return nil, defined(a, fmt.Errorf("the sum of a %s and a %s", typeName(a), typeName(b)))
}

func (m *machine) repeat(v value, n int64) (value, error) {
	n = max(n, 0)
	switch v := v.(type) {
	case string:
		if high, low := bits.Mul64(uint64(len(v)), uint64(n)); high > 0 || low > maxBytes {
			return nil, errBytes
		}
		if err := m.grow(len(v) * int(n)); err != nil || v == "" {
			return "", err
		}
		return strings.Repeat(v, int(n)), nil
	case *list:
		if v.kind > kindTuple {
			break
		}
		if high, low := bits.Mul64(uint64(len(v.items)), uint64(n)); high > 0 || low > maxBytes/16 {
			return nil, errBytes
		}
		if err := m.grow(16 * len(v.items) * int(n)); err != nil {
			return nil, err
		}
		if len(v.items) == 0 {
			n = 0
		}
		return m.list(v.kind, slices.Repeat(v.items, int(n)))
	}
	return nil, defined(v, mistake("a multiple", v))
}

func whole64(op string, n, k int64) (value, error) {
	switch op {
	case "+":
		if sum := n + k; (sum > n) == (k > 0) {
			return sum, nil
		}
	case "-":
		if d := n - k; (d < n) == (k > 0) {
			return d, nil
		}
	case "*":
		if n == 0 || k == 0 {
			return int64(0), nil
		}
		if p := n * k; p/k == n && (n != -1 || k != math.MinInt64) && (k != -1 || n != math.MinInt64) {
			return p, nil
		}
	default: // "//" and "%", of which the result has the sign of the divisor
		if k == 0 {
			return nil, errZero
		}
		if n == math.MinInt64 && k == -1 {
			break
		}
		q, r := n/k, n%k
		if r != 0 && (r < 0) != (k < 0) {
			q, r = q-1, r+k
		}
		if op == "%" {
			return r, nil
		}
		return q, nil
	}
	return nil, errLarge
}

func floats(op string, f, g float64) (value, error) {
	switch op {
	case "+":
		return f + g, nil
	case "-":
		return f - g, nil
	case "*":
		return f * g, nil
	}
	if g == 0 {
		return nil, errZero
	}
	if op == "/" {
		if math.Abs(f) > exact || math.Abs(g) > exact {
			return nil, unsupported("a division of large numbers")
		}
		return f / g, nil
	}
	return nil, unsupported("the operator " + op + " of numbers that are not whole")
}

// format is the operator % of a text.
func (m *machine) format(format string, v value) (value, error) {
	args := []value{v}
	if l, is := v.(*list); is && l.kind == kindTuple {
		args = l.items
	}
	var b strings.Builder
	used := 0
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			b.WriteByte(format[i])
			continue
		}
		if i++; i == len(format) {
			return nil, errors.New("an incomplete format")
		}
		if format[i] == '%' {
			b.WriteByte('%')
			continue
		}
		if strings.IndexByte("sdir", format[i]) < 0 {
			return nil, unsupported(fmt.Sprintf("the format %%%c", format[i]))
		}
		if used == len(args) {
			return nil, errors.New("not enough arguments for a format")
		}
		x := args[used]
		used++
		var err error
		switch n, _, whole, ok := number(x); {
		case format[i] == 'r':
			err = m.repr(&b, x)
		case format[i] == 's':
			var text string
			text, err = m.str(x)
			b.WriteString(text)
		case ok && whole:
			b.WriteString(strconv.FormatInt(n, 10))
		case ok:
			err = unsupported("the format %d of a number that is not whole")
		default:
			err = defined(x, mistake("the format %d", x))
		}
		if err == nil {
			err = m.grow(b.Len() / (used + 1))
		}
		if err != nil {
			return nil, err
		}
	}
	if _, isDict := v.(*dict); used < len(args) && !isDict {
		if l, is := v.(*list); is && l.kind == kindList {
			return nil, unsupported("the format of a list that is not used")
		}
		return nil, errors.New("a format does not use all of its arguments")
	}
	return b.String(), m.grow(b.Len())
}

// attribute is value.name: an attribute, else a member.
func (m *machine) attribute(v value, name string) (value, error) {
	switch v := v.(type) {
	case undefined:
		return nil, v.use()
	case markup, *generator, *method, *closure:
		return nil, unsupported("an attribute of a " + typeName(v))
	case *namespace:
		if x, has := v.get(name); has {
			return x, nil
		}
		return undefined{name}, nil
	case *iteration:
		return v.attribute(m, name)
	case *dict:
		if x, err := methodOf(v, name); x != nil || err != nil {
			return x, err
		}
		if x, has := v.get(name); has {
			return x, nil
		}
		return undefined{name}, nil
	}
	if x, err := methodOf(v, name); x != nil || err != nil {
		return x, err
	}
	return undefined{name}, nil
}

// item is value[index]: a member, else an attribute.
func (m *machine) item(v, index value) (value, error) {
	n, _, whole, _ := number(index)
	key, text := index.(string)
	if !text && !whole {
		if _, is := index.(markup); is {
			return nil, unsupported("a safe text as a key")
		}
		return undefined{"a member"}, defined(v, nil)
	}
	missing := undefined{"a member"} // its name may quote the chat
	switch v := v.(type) {
	case undefined:
		return nil, v.use()
	case *dict:
		if x, has := v.get(key); text && has {
			return x, nil
		}
	case *list:
		if whole && v.kind != kindView {
			if n < 0 {
				n += int64(len(v.items))
			}
			if n < 0 || n >= int64(len(v.items)) {
				return missing, nil
			}
			return v.items[n], nil
		}
	case string:
		if whole {
			return m.character(v, n, missing)
		}
	}
	if text && key != "" && key[0] == '_' {
		return nil, unsupported("a member that begins with _")
	}
	if text {
		x, err := m.attribute(v, key)
		if _, is := x.(undefined); !is || err != nil {
			return x, err
		}
	}
	return missing, nil
}

// character returns one character of a text.
func (m *machine) character(s string, n int64, missing value) (value, error) {
	if err := m.charge(len(s) / 16); err != nil {
		return nil, err
	}
	if n < 0 {
		n += int64(utf8.RuneCountInString(s))
	}
	for i, r := range s {
		if n == 0 {
			return s[i : i+utf8.RuneLen(r)], nil
		}
		n--
	}
	return missing, nil
}

// attribute is loop.name.
func (l *iteration) attribute(_ *machine, name string) (value, error) {
	n, i := len(l.items), l.at
	near := func(i int) (value, error) {
		if i < 0 || i >= n {
			return undefined{name}, nil
		}
		return l.items[i], nil
	}
	switch name {
	case "index":
		return int64(i + 1), nil
	case "index0":
		return int64(i), nil
	case "revindex":
		return int64(n - i), nil
	case "revindex0":
		return int64(n - i - 1), nil
	case "first":
		return i == 0, nil
	case "last":
		return i == n-1, nil
	case "length":
		return int64(n), nil
	case "depth":
		return int64(1), nil
	case "depth0":
		return int64(0), nil
	case "previtem":
		return near(i - 1)
	case "nextitem":
		return near(i + 1)
	case "cycle":
		return &method{l, func(_ *machine, _ value, g given) (value, error) {
			if len(g.plain) == 0 || len(g.names) > 0 {
				return nil, errors.New("loop.cycle has no values")
			}
			return g.plain[i%len(g.plain)], nil
		}}, nil
	case "changed":
		return &method{l, func(m *machine, _ value, g given) (value, error) {
			if len(g.names) > 0 {
				return nil, errors.New("loop.changed with named values")
			}
			before := &list{kind: kindTuple, items: l.changed}
			same, err := m.equal(before, &list{kind: kindTuple, items: g.plain})
			changed := l.changed == nil || !same
			if l.changed = g.plain; l.changed == nil {
				l.changed = []value{}
			}
			return changed, err
		}}, nil
	}
	return undefined{name}, nil
}

// globals are the functions of a template.
var globals map[string]func(m *machine, _ value, g given) (value, error)

func init() {
	globals = map[string]func(m *machine, _ value, g given) (value, error){
		"range": numbers,
		"namespace": func(m *machine, _ value, g given) (value, error) {
			d, err := newDict(m, g)
			if err != nil {
				return nil, err
			}
			return &namespace{*d}, nil
		},
		"dict": func(m *machine, _ value, g given) (value, error) {
			d, err := newDict(m, g)
			if err != nil {
				return nil, err
			}
			return d, nil
		},
		"raise_exception": func(_ *machine, _ value, g given) (value, error) {
			why, err := g.bind("message")
			if err != nil {
				return nil, err
			}
			message, _ := or(why[0], "").(string)
			return nil, raised(message)
		},
		"strftime_now": nil, // of each template: it has the clock
	}
}

// newDict returns a dict of named values, after those of a dict.
func newDict(m *machine, g given) (*dict, error) {
	d := &dict{depth: 1}
	if len(g.plain) > 0 {
		before, is := g.plain[0].(*dict)
		if !is || len(g.plain) > 1 {
			return nil, unsupported("a dictionary of other things than a dictionary")
		}
		d.unordered = before.unordered
		for i, k := range before.keys {
			d.put(k, before.values[i])
		}
	}
	for i, k := range g.names {
		d.put(k, g.named[i])
	}
	return d, m.fits(d.depth, 2*len(d.keys))
}

// numbers is Python's range, of at most as many numbers as Jinja2's sandbox allows.
func numbers(m *machine, _ value, g given) (value, error) {
	var at [3]int64
	if len(g.names) > 0 || len(g.plain) < 1 || len(g.plain) > 3 {
		return nil, errors.New("range takes one to three numbers")
	}
	at[2] = 1
	for i, v := range g.plain {
		n, _, whole, _ := number(v)
		if !whole {
			return nil, defined(v, mistake("a range", v))
		}
		at[i] = n
	}
	if len(g.plain) == 1 {
		at[0], at[1] = 0, at[0]
	}
	from, to, step := at[0], at[1], at[2]
	if step == 0 {
		return nil, errors.New("the step of a range is 0")
	}
	items := []value{}
	for i := from; step > 0 && i < to || step < 0 && i > to; {
		if items = append(items, i); len(items) > maxRange {
			return nil, fmt.Errorf("a range of more than %d numbers", maxRange)
		}
		next := i + step
		if (next > i) != (step > 0) {
			break
		}
		i = next
	}
	return m.list(kindRange, items)
}
