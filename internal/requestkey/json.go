package requestkey

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A jsonValue is a value in a JSON text that may have been cut off. It aliases the text.
type jsonValue struct {
	b   []byte // still JSON; none = absent
	cut bool   // the input ended, or went wrong, inside it
}

// is reports whether the value begins with c: { an object, [ an array, " a string.
func (v jsonValue) is(c byte) bool { return len(v.b) > 0 && v.b[0] == c }

// each calls take for the members of a value that is an object, or the elements of an array. The brackets say which is
// wanted: "{}" or "[]". A member whose value is cut is the last one; whole is false if there is no closing bracket.
// Values are not validated beyond their nesting: a server will refuse what is not JSON.
func (v jsonValue) each(brackets string, take func(key string, v jsonValue)) (whole bool) {
	b, ok := after(v.b, brackets[0])
	for n := 0; ok; n++ {
		if _, end := after(b, brackets[1]); end {
			return true
		}
		if n > 0 {
			if b, ok = after(b, ','); !ok {
				return false
			}
		}
		key := ""
		if b = space(b); brackets == "{}" {
			name := valueOfJSON(b)
			if b, ok = after(b[len(name.b):], ':'); !ok || !name.is('"') || name.cut {
				return false
			}
			key, _ = name.text()
			b = space(b)
		}
		member := valueOfJSON(b)
		if len(member.b) == 0 {
			return false
		}
		take(key, member)
		b, ok = b[len(member.b):], !member.cut
	}
	return false
}

// after returns what stands behind c, if b begins with it.
func after(b []byte, c byte) (rest []byte, ok bool) {
	if b = space(b); len(b) > 0 && b[0] == c {
		return b[1:], true
	}
	return b, false
}

// space returns what stands behind white space.
func space(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\n' || b[0] == '\t' || b[0] == '\r') {
		b = b[1:]
	}
	return b
}

// valueOfJSON returns the value that b starts with.
func valueOfJSON(b []byte) jsonValue {
	if len(b) == 0 || b[0] != '"' && b[0] != '{' && b[0] != '[' {
		n := bytes.IndexAny(b, ",:]}[{\" \n\t\r")
		if n < 0 {
			return jsonValue{b, true} // a number may go on
		}
		return jsonValue{b: b[:n]}
	}
	for n, depth := 0, 0; n < len(b); {
		switch b[n] {
		case '"':
			k := stringEnd(b[n:])
			if k < 0 {
				return jsonValue{b, true}
			}
			n += k - 1
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		if n++; depth == 0 {
			return jsonValue{b: b[:n]}
		}
	}
	return jsonValue{b, true}
}

// stringEnd returns where the string that b starts with ends, -1 if it does not.
func stringEnd(b []byte) int {
	for i := 1; ; {
		k := bytes.IndexByte(b[i:], '"')
		if k < 0 {
			return -1
		}
		i += k + 1
		slashes := 0
		for b[i-2-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return i
		}
	}
}

// text returns the text of a string, without copying it if it has no escapes; of one that is cut, what there is. ok is
// false if the value is no string.
func (v jsonValue) text() (s string, ok bool) {
	if !v.is('"') {
		return "", false
	}
	if in := v.inside(); bytes.IndexByte(in, '\\') < 0 && utf8.Valid(in) {
		return alias(in), true
	}
	return alias(v.appendText(make([]byte, 0, len(v.b)))), true
}

// inside returns what stands between the quotes of a string.
func (v jsonValue) inside() []byte {
	if v.cut {
		return v.b[1:]
	}
	return v.b[1 : len(v.b)-1]
}

// The characters behind a backslash, and what they stand for.
const escapes, escaped = `"\/bfnrt`, "\"\\/\b\f\n\r\t"

// appendText appends the text of a string, as encoding/json would give it. It stops at a broken escape, and at a rune
// that is cut.
func (v jsonValue) appendText(dst []byte) []byte {
	for in := v.inside(); ; {
		n := bytes.IndexByte(in, '\\')
		if n < 0 {
			return appendValid(dst, in, v.cut)
		}
		dst = appendValid(dst, in[:n], false)
		if in = in[n:]; len(in) < 2 {
			return dst
		}
		if i := strings.IndexByte(escapes, in[1]); i >= 0 {
			dst, in = append(dst, escaped[i]), in[2:]
			continue
		}
		r, n := unicodeEscape(in, v.cut)
		if n == 0 {
			return dst
		}
		dst, in = utf8.AppendRune(dst, r), in[n:]
	}
}

// appendValid appends text, with U+FFFD for what is not UTF-8, and without a rune that is cut.
func appendValid(dst, text []byte, cut bool) []byte {
	if utf8.Valid(text) {
		return append(dst, text...)
	}
	for len(text) > 0 && (!cut || utf8.FullRune(text)) {
		r, n := utf8.DecodeRune(text)
		dst, text = utf8.AppendRune(dst, r), text[n:]
	}
	return dst
}

// unicodeEscape reads a \u escape of four digits, or two of them for a surrogate pair; 0 bytes if it is broken or cut.
func unicodeEscape(b []byte, cut bool) (r rune, n int) {
	r, ok := hex4(b)
	switch {
	case !ok:
		return 0, 0
	case !utf16.IsSurrogate(r):
		return r, 6
	case cut && len(b) < 12:
		return 0, 0
	}
	low, _ := hex4(b[6:])
	if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
		return r, 6
	}
	return r, 12
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(alias(b[2:6]), 16, 16)
	return rune(n), err == nil
}

// An object is some members of a JSON object. The last of a repeated member counts, null counts as absent.
type object struct {
	names []string
	vals  [26]jsonValue
	whole bool // it is an object and does not end early
}

// objectOf returns the members of an object that have one of the names.
func objectOf(v jsonValue, names []string) object {
	o := object{names: names}
	o.whole = v.each("{}", func(key string, v jsonValue) {
		if i := slices.Index(names, key); i >= 0 && string(v.b) != "null" {
			o.vals[i] = v
		}
	})
	return o
}

// val returns the value of a member.
func (o *object) val(name string) jsonValue { return o.vals[slices.Index(o.names, name)] }

// text returns the first member that is a string, or a number as written, and not empty; not what is cut.
func (o *object) text(names ...string) string {
	for _, name := range names {
		v := o.val(name)
		s, ok := v.text()
		if !ok && len(v.b) > 0 && (v.b[0] == '-' || v.b[0] >= '0' && v.b[0] <= '9') {
			s = alias(v.b)
		}
		if s != "" && !v.cut {
			return s
		}
	}
	return ""
}

// copied returns the same in memory of its own.
func (o *object) copied(names ...string) string { return strings.Clone(o.text(names...)) }
