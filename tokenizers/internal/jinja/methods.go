package jinja

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// methods are those of Python's types that templates for chats use, by type.
var methods map[string]map[string]builtin

// others are the attributes that Python's types have beside them. A template that calls one is refused.
var others = map[string][]string{
	"str": strings.Fields("casefold center encode expandtabs format format_map isalnum isalpha isascii isdecimal isidentifier isnumeric " +
		"isprintable istitle ljust maketrans rjust rpartition partition swapcase translate zfill rindex"),
	"int":        strings.Fields("as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag numerator real to_bytes"),
	"float":      strings.Fields("as_integer_ratio conjugate fromhex hex imag is_integer real"),
	"list":       strings.Fields("append clear copy extend insert pop remove reverse sort"),
	"dict":       strings.Fields("clear copy fromkeys pop popitem setdefault update"),
	"range":      strings.Fields("count index start step stop"),
	"dict_items": strings.Fields("isdisjoint mapping"),
}

func init() {
	others["bool"] = others["int"]
	text := func(f func(s string) (string, error)) builtin {
		do := of1(f)
		return do
	}
	is := func(holds func(c byte) bool) builtin {
		return func(m *machine, v value, g given) (value, error) {
			if _, err := g.bind(); err != nil {
				return nil, err
			}
			s := v.(string)
			if !ascii(s) {
				return nil, unsupported("a question about letters that are not ASCII")
			}
			all := s != ""
			for i := range len(s) {
				all = all && holds(s[i])
			}
			return all, m.charge(len(s))
		}
	}
	inCase := func(name string) builtin {
		return func(m *machine, v value, g given) (value, error) { return m.test(name, v, g) }
	}
	methods = map[string]map[string]builtin{
		"str": {
			"capitalize": text(capitalize), "count": countText, "endswith": affix(strings.HasSuffix), "find": find(strings.Index, false),
			"index": find(strings.Index, true), "isdigit": is(func(c byte) bool { return c >= '0' && c <= '9' }), "islower": inCase("lower"),
			"isspace": is(func(c byte) bool { return isSpace(rune(c)) }), "isupper": inCase("upper"), "join": joined, "lower": text(lower),
			"lstrip": strip(true, false), "removeprefix": removed(strings.TrimPrefix), "removesuffix": removed(strings.TrimSuffix),
			"replace": replaceMethod, "rfind": find(strings.LastIndex, false), "rsplit": split(true), "rstrip": strip(false, true),
			"split": split(false), "splitlines": lines, "startswith": affix(strings.HasPrefix), "strip": strip(true, true),
			"title": text(titleMethod), "upper": text(upper),
		},
		"dict": {
			"get": func(_ *machine, v value, g given) (value, error) {
				if len(g.names) > 0 || len(g.plain) == 0 || len(g.plain) > 2 {
					return nil, errors.New("get takes a key and a default")
				}
				if key, is := g.plain[0].(string); is {
					if x, has := v.(*dict).get(key); has {
						return x, nil
					}
				} else if depthOf(g.plain[0]) > 0 {
					return nil, mistake("a key", g.plain[0])
				}
				if len(g.plain) == 2 {
					return g.plain[1], nil
				}
				return nil, nil
			},
			"items": func(m *machine, v value, g given) (value, error) {
				if _, err := g.bind(); err != nil {
					return nil, err
				}
				return m.pairs(v.(*dict))
			},
			"keys": func(m *machine, v value, g given) (value, error) {
				if _, err := g.bind(); err != nil {
					return nil, err
				}
				all, err := m.each(v)
				if err != nil {
					return nil, err
				}
				return m.list(kindView, all)
			},
			"values": func(m *machine, v value, g given) (value, error) {
				if _, err := g.bind(); err != nil {
					return nil, err
				}
				if err := v.(*dict).ordered(); err != nil {
					return nil, err
				}
				return m.list(kindView, v.(*dict).values)
			},
		},
		"list": {"count": countItems, "index": indexOf},
	}
	methods["tuple"] = methods["list"]
}

// methodOf returns a method of a value: nil = its type has no attribute of that name.
func methodOf(v value, name string) (value, error) {
	kind := typeName(v)
	if do := methods[kind][name]; do != nil {
		return &method{v, do}, nil
	}
	if slices.Contains(others[kind], name) {
		return nil, unsupported("the attribute " + name + " of a " + kind)
	}
	return nil, nil
}

// refused reports whether a method of that name is one that only Python has.
func refused(name string) bool {
	for _, has := range methods {
		if has[name] != nil {
			return false
		}
	}
	for _, has := range others {
		if slices.Contains(has, name) {
			return true
		}
	}
	return false
}

// texts returns the arguments of a method that are texts without names.
func (g given) texts(least, most int) ([]string, error) {
	if len(g.names) > 0 || len(g.plain) < least || len(g.plain) > most {
		return nil, fmt.Errorf("a method takes %d to %d arguments", least, most)
	}
	all := make([]string, len(g.plain))
	for i, v := range g.plain {
		s, is := v.(string)
		if !is {
			if _, marked := v.(markup); marked {
				return nil, unsupported("a method with a safe text")
			}
			return nil, mistake("a text", v)
		}
		all[i] = s
	}
	return all, nil
}

func strip(left, right bool) builtin {
	return func(m *machine, v value, g given) (value, error) {
		if len(g.names) > 0 || len(g.plain) > 1 {
			return nil, errors.New("strip takes one argument")
		}
		var chars value
		if len(g.plain) == 1 {
			chars = g.plain[0]
		}
		return stripped(m, v.(string), chars, left, right)
	}
}

// stripped takes characters away at the ends: white space if chars is nil.
func stripped(m *machine, s string, chars value, left, right bool) (value, error) {
	in := isSpace
	if chars != nil {
		set, is := chars.(string)
		if !is {
			return nil, mistake("a text", chars)
		}
		in = func(r rune) bool { return strings.ContainsRune(set, r) }
		if err := m.charge(len(set) * 8); err != nil {
			return nil, err
		}
	}
	before := len(s)
	if left {
		s = strings.TrimLeftFunc(s, in)
	}
	if right {
		s = strings.TrimRightFunc(s, in)
	}
	return s, m.charge(before - len(s))
}

func affix(has func(s, part string) bool) builtin {
	return func(_ *machine, v value, g given) (value, error) {
		if len(g.names) == 0 && len(g.plain) == 1 {
			if l, is := g.plain[0].(*list); is && l.kind == kindTuple {
				g.plain = l.items
			}
		} else {
			return nil, unsupported("a beginning or an end within bounds")
		}
		parts, err := g.texts(0, len(g.plain))
		return slices.ContainsFunc(parts, func(part string) bool { return has(v.(string), part) }), err
	}
}

func removed(remove func(s, part string) string) builtin {
	return func(_ *machine, v value, g given) (value, error) {
		parts, err := g.texts(1, 1)
		if err != nil {
			return nil, err
		}
		return remove(v.(string), parts[0]), nil
	}
}

func countText(m *machine, v value, g given) (value, error) {
	if len(g.plain) > 1 {
		return nil, unsupported("a count within bounds")
	}
	parts, err := g.texts(1, 1)
	if err != nil {
		return nil, err
	}
	return int64(strings.Count(v.(string), parts[0])), m.charge(len(v.(string)) / 8)
}

func find(index func(s, part string) int, must bool) builtin {
	return func(m *machine, v value, g given) (value, error) {
		if len(g.plain) > 1 {
			return nil, unsupported("a search within bounds")
		}
		parts, err := g.texts(1, 1)
		if err != nil {
			return nil, err
		}
		s := v.(string)
		at := index(s, parts[0])
		if at < 0 && must {
			return nil, errors.New("a text is not found")
		}
		return int64(utf8.RuneCountInString(s[:max(at, 0)])) + int64(min(at, 0)), m.charge(len(s) / 8)
	}
}

func joined(m *machine, v value, g given) (value, error) {
	if len(g.names) > 0 || len(g.plain) != 1 {
		return nil, errors.New("join takes a list")
	}
	all, err := m.each(g.plain[0])
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	for i, x := range all {
		s, is := x.(string)
		if !is {
			return nil, mistake("a text", x)
		}
		if i > 0 {
			s = v.(string) + s
		}
		b.WriteString(s)
		if err := m.grow(len(s)); err != nil {
			return nil, err
		}
	}
	return b.String(), nil
}

func replaceMethod(m *machine, v value, g given) (value, error) {
	count := int64(-1)
	if len(g.plain) == 3 {
		n, _, whole, _ := number(g.plain[2])
		if !whole {
			return nil, mistake("a count", g.plain[2])
		}
		count, g.plain = n, g.plain[:2]
	}
	parts, err := g.texts(2, 2)
	if err != nil {
		return nil, err
	}
	return replaced(m, v.(string), parts[0], parts[1], count)
}

func lines(m *machine, v value, g given) (value, error) {
	a, err := g.bind("keepends")
	if err != nil {
		return nil, err
	}
	return m.words(kindList, splitLines(v.(string), truth(or(a[0], false))))
}

// split is split, or rsplit from the right.
func split(right bool) builtin {
	return func(m *machine, v value, g given) (value, error) {
		a, err := g.bind("sep", "maxsplit")
		if err != nil {
			return nil, err
		}
		s, most := v.(string), int64(-1)
		if n, _, whole, _ := number(or(a[1], int64(-1))); whole {
			most = n
		} else {
			return nil, mistake("a count", a[1])
		}
		if most < 0 || most > int64(len(s)) {
			most = int64(len(s)) + 1
		}
		var parts []string
		switch sep := or(a[0], nil).(type) {
		case nil:
			parts = words(s, int(most), right)
		case string:
			if sep == "" {
				return nil, errors.New("an empty separator")
			}
			parts = cutAt(s, sep, int(most), right)
		default:
			return nil, mistake("a text", sep)
		}
		if err := m.grow(len(s)); err != nil {
			return nil, err
		}
		return m.words(kindList, parts)
	}
}

func cutAt(s, sep string, most int, right bool) (parts []string) {
	if !right {
		return strings.SplitN(s, sep, most+1)
	}
	for ; most > 0; most-- {
		i := strings.LastIndex(s, sep)
		if i < 0 {
			break
		}
		parts, s = append(parts, s[i+len(sep):]), s[:i]
	}
	parts = append(parts, s)
	slices.Reverse(parts)
	return parts
}

// words splits at white space.
func words(s string, most int, right bool) (parts []string) {
	if right {
		for s = strings.TrimRightFunc(s, isSpace); s != "" && most > 0; most-- {
			i := strings.LastIndexFunc(s, isSpace)
			_, n := utf8.DecodeRuneInString(s[max(i, 0):])
			if i < 0 {
				n = 0
			}
			parts, s = append(parts, s[max(i, 0)+n:]), strings.TrimRightFunc(s[:max(i, 0)], isSpace)
		}
		if s != "" {
			parts = append(parts, s)
		}
		slices.Reverse(parts)
		return parts
	}
	for s = strings.TrimLeftFunc(s, isSpace); s != "" && most > 0; most-- {
		i := strings.IndexFunc(s, isSpace)
		if i < 0 {
			i = len(s)
		}
		parts, s = append(parts, s[:i]), strings.TrimLeftFunc(s[i:], isSpace)
	}
	if s != "" {
		parts = append(parts, s)
	}
	return parts
}

func countItems(m *machine, v value, g given) (value, error) {
	if len(g.names) > 0 || len(g.plain) != 1 {
		return nil, errors.New("count takes a value")
	}
	n := int64(0)
	for _, x := range v.(*list).items {
		same, err := m.equal(x, g.plain[0])
		if err != nil {
			return nil, err
		}
		if same {
			n++
		}
	}
	return n, nil
}

func indexOf(m *machine, v value, g given) (value, error) {
	if len(g.names) > 0 || len(g.plain) != 1 {
		return nil, unsupported("a search within bounds")
	}
	for i, x := range v.(*list).items {
		same, err := m.equal(x, g.plain[0])
		if same || err != nil {
			return int64(i), err
		}
	}
	return nil, errors.New("a value is not in the list")
}
