package jinja

import (
	"strings"
)

// A test is what may stand behind is.
type test struct {
	arguments int
	is        func(m *machine, v value, args []value) (bool, error)
}

// tests are those of Jinja2 that templates for chats use.
var tests map[string]*test

func init() {
	kind := func(is func(v value) bool) *test {
		return &test{0, func(_ *machine, v value, _ []value) (bool, error) { return is(v), nil }}
	}
	compared := func(op string) *test {
		return &test{1, func(m *machine, v value, args []value) (bool, error) { return m.holds(op, v, args[0]) }}
	}
	remainder := func(divisor int64, want int64) *test {
		return &test{0, func(m *machine, v value, _ []value) (bool, error) { return m.divides(v, divisor, want) }}
	}
	inCase := func(change func(string) (string, error), other func(string) (string, error)) *test {
		return &test{0, func(m *machine, v value, _ []value) (bool, error) {
			s, err := m.str(v)
			if err != nil {
				return false, err
			}
			if !ascii(s) {
				return false, errLetters
			}
			same, _ := change(s)
			changed, _ := other(s)
			return same == s && changed != s, m.charge(len(s) / 8)
		}}
	}
	tests = map[string]*test{
		"defined":   kind(func(v value) bool { _, is := v.(undefined); return !is }),
		"undefined": kind(func(v value) bool { _, is := v.(undefined); return is }),
		"none":      kind(func(v value) bool { return v == nil }),
		"boolean":   kind(func(v value) bool { _, is := v.(bool); return is }),
		"true":      kind(func(v value) bool { return v == value(true) }),
		"false":     kind(func(v value) bool { return v == value(false) }),
		"integer":   kind(func(v value) bool { _, is := v.(int64); return is }),
		"float":     kind(func(v value) bool { _, is := v.(float64); return is }),
		"number":    kind(func(v value) bool { _, _, _, ok := number(v); return ok }),
		"string":    kind(func(v value) bool { return typeName(v) == "str" }),
		"mapping":   kind(func(v value) bool { _, is := v.(*dict); return is }),
		"iterable":  kind(iterable),
		"sequence": kind(func(v value) bool {
			return iterable(v) && typeName(v) != "generator" && typeName(v) != "dict_items" && !isLoop(v)
		}),
		"callable": kind(callable),
		"lower":    inCase(lower, upper),
		"upper":    inCase(upper, lower),
		"odd":      remainder(2, 1),
		"even":     remainder(2, 0),
		"divisibleby": {1, func(m *machine, v value, args []value) (bool, error) {
			n, _, whole, _ := number(args[0])
			if !whole {
				return false, unsupported("a remainder of numbers that are not whole")
			}
			return m.divides(v, n, 0)
		}},
		"in": compared("in"),
		"sameas": {1, func(_ *machine, v value, args []value) (bool, error) {
			switch args[0].(type) {
			case nil, bool:
				return v == args[0], nil
			}
			return false, unsupported("the test sameas of other values than none, true and false")
		}},
	}
	for op, names := range map[string]string{
		"==": "eq equalto", "!=": "ne", ">": "gt greaterthan", ">=": "ge", "<": "lt lessthan", "<=": "le",
	} {
		for _, name := range append(strings.Fields(names), op) {
			tests[name] = compared(op)
		}
	}
}

func isLoop(v value) bool { _, is := v.(*iteration); return is }

func iterable(v value) bool {
	switch v.(type) {
	case string, markup, *list, *dict, undefined, *generator, *iteration:
		return true
	}
	return false
}

func callable(v value) bool {
	switch v.(type) {
	case *closure, *method, *iteration, undefined:
		return true
	}
	return false
}

// divides reports whether a number has a remainder.
func (m *machine) divides(v value, divisor, want int64) (bool, error) {
	if s, is := v.(string); is {
		formatted, err := m.format(s, divisor)
		return formatted == value(want), err
	}
	n, _, whole, ok := number(v)
	switch {
	case !ok:
		return false, defined(v, mistake("the remainder", v))
	case !whole:
		return false, unsupported("a remainder of numbers that are not whole")
	}
	r, err := whole64("%", n, divisor)
	return r == value(want), err
}
