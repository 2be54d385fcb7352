package requestkey

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A walker goes over the members of a JSON object or the elements of an array,
// one level deep, without copying. It does not validate the values it passes
// over beyond their nesting: a server will refuse what is not JSON. It stops at
// the first byte that cannot be right, and at the end of input that was cut off.
type walker struct {
	b     []byte
	i     int
	array bool
	seen  bool // a member was seen

	key string // of the member; "" in an array
	val []byte // its value, still JSON; what there is of it when cut
	cut bool   // the input ended, or went wrong, inside the value
	end bool   // the closing bracket was reached
}

// walk returns a walker over v; one that has no members if v is a scalar.
func walk(v []byte) walker {
	w := walker{b: v}
	w.space()
	if w.i < len(v) && (v[w.i] == '{' || v[w.i] == '[') {
		w.array = v[w.i] == '['
		w.i++
		return w
	}
	w.i = len(v)
	return w
}

func (w *walker) space() {
	for w.i < len(w.b) && (w.b[w.i] == ' ' || w.b[w.i] == '\n' || w.b[w.i] == '\t' || w.b[w.i] == '\r') {
		w.i++
	}
}

// skip passes over c, and space before it.
func (w *walker) skip(c byte) bool {
	w.space()
	if w.i < len(w.b) && w.b[w.i] == c {
		w.i++
		return true
	}
	return false
}

// next moves to the next member. A member whose value is cut is the last one.
func (w *walker) next() bool {
	if w.cut || w.end {
		return false
	}
	closing := byte('}')
	if w.array {
		closing = ']'
	}
	if w.skip(closing) {
		w.end = true
		return false
	}
	if w.seen && !w.skip(',') {
		return false
	}
	w.seen = true
	if w.space(); !w.array {
		n, whole := stringEnd(w.b[w.i:])
		if !whole {
			return false
		}
		w.key, _ = unquote(w.b[w.i : w.i+n])
		if w.i += n; !w.skip(':') {
			return false
		}
		w.space()
	}
	n, whole := valueEnd(w.b[w.i:])
	w.val, w.cut = w.b[w.i:w.i+n], !whole
	w.i += n
	return n > 0
}

// An object is some members of a JSON object. The last of a repeated member counts, null counts as absent.
type object struct {
	names []string
	vals  [20][]byte
	whole bool   // it is an object and does not end early
	cut   string // the member in which the input ends
}

// objectOf reads the members of an object that have one of the names.
func objectOf(v []byte, names []string) object {
	o := object{names: names}
	w := walk(v)
	for w.next() {
		if i := slices.Index(names, w.key); i >= 0 && !w.array && string(w.val) != "null" {
			o.vals[i] = w.val
		}
	}
	if o.whole = w.end && !w.array; w.cut {
		o.cut = w.key
	}
	return o
}

// val returns the value of a member, still JSON; nil where it is absent.
func (o *object) val(name string) []byte { return o.vals[slices.Index(o.names, name)] }

// text returns a copy of the first member that is a string, or a number as written, and not empty; not what is cut.
func (o *object) text(names ...string) string {
	for _, name := range names {
		v := o.val(name)
		if len(v) == 0 || o.cut == name {
			continue
		}
		if s, ok := unquote(v); s != "" {
			return strings.Clone(s)
		} else if c := v[0]; !ok && (c == '-' || c >= '0' && c <= '9') {
			return string(v)
		}
	}
	return ""
}

// count returns the first member that is a whole number other than 0, or a string of one; ok is false if there is no
// number.
func (o *object) count(names ...string) (n int, ok bool) {
	for _, name := range names {
		v := o.val(name)
		if len(v) == 0 || o.cut == name {
			continue
		}
		s, quoted := unquote(v)
		if !quoted {
			s = alias(v)
		}
		x, valid := parseCount(s)
		if ok = ok || valid; x > 0 {
			return x, true
		}
	}
	return 0, ok
}

// stringEnd returns where the string that b starts with ends.
func stringEnd(b []byte) (n int, whole bool) {
	if len(b) == 0 || b[0] != '"' {
		return 0, false
	}
	for i := 1; ; {
		k := bytes.IndexByte(b[i:], '"')
		if k < 0 {
			return len(b), false
		}
		i += k + 1
		slashes := 0
		for b[i-2-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return i, true
		}
	}
}

// valueEnd returns where the value that b starts with ends.
func valueEnd(b []byte) (n int, whole bool) {
	if len(b) > 0 && b[0] == '"' {
		return stringEnd(b)
	}
	if len(b) == 0 || b[0] != '{' && b[0] != '[' {
		if n = bytes.IndexAny(b, ",:]}[{\" \n\t\r"); n < 0 {
			return len(b), false // a number may go on
		}
		return n, n > 0
	}
	for depth := 0; n < len(b); n++ {
		switch b[n] {
		case '"':
			k, ok := stringEnd(b[n:])
			if n += k - 1; !ok {
				return len(b), false
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return n + 1, true
			}
		}
	}
	return n, false
}

// unquote returns the text of a JSON string, without copying if it has no
// escapes. Of a string that was cut it returns what there is. ok is false if v
// is no string.
func unquote(v []byte) (s string, ok bool) {
	if len(v) == 0 || v[0] != '"' {
		return "", false
	}
	n, whole := stringEnd(v)
	v = v[1:n]
	if whole {
		v = v[:len(v)-1]
	}
	if bytes.IndexByte(v, '\\') < 0 && utf8.Valid(v) {
		return alias(v), true
	}
	return alias(unescape(make([]byte, 0, len(v)), v, whole)), true
}

// The characters behind a backslash, and what they stand for.
const escapes, escaped = `"\/bfnrt`, "\"\\/\b\f\n\r\t"

// unescape appends the text of the inside of a JSON string, as encoding/json
// would give it. It stops at a broken escape, and at a rune that was cut.
func unescape(dst, v []byte, whole bool) []byte {
	for {
		n := bytes.IndexByte(v, '\\')
		if n < 0 {
			return appendValid(dst, v, whole)
		}
		dst = appendValid(dst, v[:n], true)
		if v = v[n:]; len(v) < 2 {
			return dst
		}
		c := v[1]
		switch n = 2; c {
		case 'u':
			var r rune
			if r, n = unicodeEscape(v, whole); n == 0 {
				return dst
			}
			dst = utf8.AppendRune(dst, r)
		default:
			i := strings.IndexByte(escapes, c)
			if i < 0 {
				return dst
			}
			dst = append(dst, escaped[i])
		}
		v = v[n:]
	}
}

// appendValid appends text, with U+FFFD for what is not UTF-8. A rune that was
// cut at the end is left out.
func appendValid(dst, v []byte, whole bool) []byte {
	if utf8.Valid(v) {
		return append(dst, v...)
	}
	for len(v) > 0 {
		r, n := utf8.DecodeRune(v)
		if !whole && !utf8.FullRune(v) {
			return dst
		}
		dst = utf8.AppendRune(dst, r)
		v = v[n:]
	}
	return dst
}

// unicodeEscape reads a \u escape of four digits, two of them for a surrogate pair; 0 bytes if it is
// broken or cut.
func unicodeEscape(v []byte, whole bool) (r rune, n int) {
	r, ok := hex4(v)
	if !ok {
		return 0, 0
	}
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	low, ok := hex4(v[6:])
	if !ok && !whole && len(v) < 12 {
		return 0, 0
	}
	if r = utf16.DecodeRune(r, low); ok && r != utf8.RuneError {
		return r, 12
	}
	return utf8.RuneError, 6
}

func hex4(v []byte) (rune, bool) {
	if len(v) < 6 || v[0] != '\\' || v[1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(alias(v[2:6]), 16, 16)
	return rune(n), err == nil
}
