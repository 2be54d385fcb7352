package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// kind is what a token is.
type kind byte

const (
	kindEOF kind = iota
	kindText
	kindOpenVariable
	kindCloseVariable
	kindOpenBlock
	kindCloseBlock
	kindName
	kindString
	kindInt
	kindFloat
	kindOperator
)

type token struct {
	kind kind
	text string // of a string: its value
	line int
}

// lexer cuts a template in tokens, with trim_blocks and lstrip_blocks.
type lexer struct {
	src    string
	at     int
	line   int
	tokens []token
	starts bool // the last tag ended with its line
}

// operators, the long ones first.
var operators = []string{
	"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ",", ";",
}

func lex(src string) ([]token, error) {
	if !utf8.ValidString(src) {
		return nil, unsupported("a template that is not UTF-8")
	}
	src = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(src)
	x := &lexer{src: strings.TrimSuffix(src, "\n"), line: 1, starts: true}
	for x.at < len(x.src) {
		if err := x.next(); err != nil {
			return nil, err
		}
	}
	x.add(kindEOF, "")
	return x.tokens, nil
}

func (x *lexer) add(k kind, text string) { x.tokens = append(x.tokens, token{k, text, x.line}) }

// skip goes on by n bytes.
func (x *lexer) skip(n int) {
	x.line += strings.Count(x.src[x.at:x.at+n], "\n")
	x.at += n
}

func (x *lexer) fail(format string, values ...any) error {
	return fmt.Errorf("line %d: %s", x.line, fmt.Sprintf(format, values...))
}

// next reads a text and the tag behind it.
func (x *lexer) next() error {
	rest := x.src[x.at:]
	open := -1
	for i := 0; i+1 < len(rest); i++ {
		if rest[i] == '{' && strings.IndexByte("{%#", rest[i+1]) >= 0 {
			open = i
			break
		}
	}
	if open < 0 {
		x.add(kindText, rest)
		x.skip(len(rest))
		return nil
	}
	tag, sign := rest[open+1], byte(0)
	n := 2
	if s := rest[open+n:]; s != "" && (s[0] == '-' || s[0] == '+') {
		sign, n = s[0], n+1
	}
	x.text(rest[:open], sign, tag == '{')
	x.skip(open)
	switch {
	case tag == '#':
		return x.comment(n)
	case tag == '{':
		x.skip(n)
		x.add(kindOpenVariable, "")
		return x.inside("}}", kindCloseVariable)
	}
	if end := tagEnd(rest[open+n:], "raw", false); end > 0 {
		return x.raw(n + end)
	}
	x.skip(n)
	x.add(kindOpenBlock, "")
	return x.inside("%}", kindCloseBlock)
}

// text adds the text ahead of a tag.
func (x *lexer) text(s string, sign byte, variable bool) {
	switch line := strings.LastIndexByte(s, '\n') + 1; {
	case sign == '-':
		s = strings.TrimRightFunc(s, isSpace)
	case sign == 0 && !variable && (line > 0 || x.starts) && strings.TrimLeftFunc(s[line:], isSpace) == "":
		s = s[:line]
	}
	if s != "" {
		x.add(kindText, s)
	}
}

// closes returns the length of the end of a tag at the beginning of s, with the white space that it takes away; 0 = none.
func closes(s, end string) int {
	switch {
	case strings.HasPrefix(s, "-"+end):
		return len(s) - len(strings.TrimLeftFunc(s[1+len(end):], isSpace))
	case end != "}}" && strings.HasPrefix(s, "+"+end):
		return 1 + len(end)
	case end != "}}" && strings.HasPrefix(s, end+"\n"):
		return len(end) + 1
	case strings.HasPrefix(s, end):
		return len(end)
	}
	return 0
}

// tagEnd returns the length of the rest of a tag {% name %}; 0 = it is another one.
func tagEnd(s, name string, trim bool) int {
	rest, ok := strings.CutPrefix(strings.TrimLeftFunc(s, isSpace), name)
	if rest = strings.TrimLeftFunc(rest, isSpace); !ok {
		return 0
	}
	n := closes(rest, "%}")
	if !trim && strings.HasPrefix(rest, "%}\n") {
		n = 2
	}
	if n == 0 || !trim && rest[0] == '+' {
		return 0
	}
	return len(s) - len(rest) + n
}

func (x *lexer) comment(n int) error {
	rest := x.src[x.at:]
	end := strings.Index(rest[n:], "#}")
	if end < 0 {
		return x.fail("a comment has no end")
	}
	if end += n; end > n && (rest[end-1] == '-' || rest[end-1] == '+') {
		end--
	}
	x.close(end + closes(rest[end:], "#}"))
	return nil
}

// close goes on behind a tag of n bytes.
func (x *lexer) close(n int) {
	x.starts = x.src[x.at+n-1] == '\n'
	x.skip(n)
}

func (x *lexer) raw(n int) error {
	x.close(n)
	rest := x.src[x.at:]
	for i := 0; i+2 < len(rest); i++ {
		if rest[i] != '{' || rest[i+1] != '%' {
			continue
		}
		n, sign := i+2, byte(0)
		if rest[n] == '-' || rest[n] == '+' {
			sign, n = rest[n], n+1
		}
		if end := tagEnd(rest[n:], "endraw", true); end > 0 {
			x.text(rest[:i], sign, false)
			x.close(n + end)
			return nil
		}
	}
	return x.fail("raw has no endraw")
}

// inside reads a tag up to its end.
func (x *lexer) inside(end string, closing kind) error {
	var braces []byte
	for {
		rest := x.src[x.at:]
		if len(braces) == 0 {
			if n := closes(rest, end); n > 0 {
				x.add(closing, "")
				x.close(n)
				return nil
			}
		}
		if rest == "" {
			return x.fail("a tag has no end")
		}
		switch c := rest[0]; {
		case isSpaceByte(rest) > 0:
			x.skip(isSpaceByte(rest))
		case c >= '0' && c <= '9':
			if err := x.number(rest); err != nil {
				return err
			}
		case nameByte(c):
			n := 1
			for n < len(rest) && (nameByte(rest[n]) || rest[n] >= '0' && rest[n] <= '9') {
				n++
			}
			x.add(kindName, rest[:n])
			x.skip(n)
		case c == '\'' || c == '"':
			if err := x.quoted(rest); err != nil {
				return err
			}
		case c >= utf8.RuneSelf:
			return unsupported(fmt.Sprintf("line %d: a name with other letters than a to z", x.line))
		default:
			op := ""
			for _, o := range operators {
				if strings.HasPrefix(rest, o) {
					op = o
					break
				}
			}
			switch {
			case op == "":
				return x.fail("unexpected character %q", c)
			case op == "(" || op == "[" || op == "{":
				braces = append(braces, ")]}"[strings.Index("([{", op)])
			case op == ")" || op == "]" || op == "}":
				if len(braces) == 0 || braces[len(braces)-1] != op[0] {
					return x.fail("unexpected %q", op)
				}
				braces = braces[:len(braces)-1]
			}
			x.add(kindOperator, op)
			x.skip(len(op))
		}
	}
}

func nameByte(c byte) bool { return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

// isSpaceByte returns the length of the white space at the beginning of s.
func isSpaceByte(s string) int { return len(s) - len(strings.TrimLeftFunc(s, isSpace)) }

func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}

func (x *lexer) number(s string) error {
	n, k := digits(s), kindInt
	whole := n
	behindDot := x.at > 0 && x.src[x.at-1] == '.'
	if !behindDot {
		if strings.HasPrefix(s[n:], ".") && digits(s[n+1:]) > 0 {
			n, k = n+1+digits(s[n+1:]), kindFloat
		}
		if n < len(s) && s[n]|0x20 == 'e' {
			e := n + 1
			if e < len(s) && (s[e] == '+' || s[e] == '-') {
				e++
			}
			if d := digits(s[e:]); d > 0 {
				n, k = e+d, kindFloat
			}
		}
	}
	if k == kindInt && whole > 1 && s[0] == '0' || n < len(s) && (nameByte(s[n]) || s[n] >= utf8.RuneSelf) {
		return unsupported(fmt.Sprintf("line %d: the number %.20q", x.line, s))
	}
	x.add(k, s[:n])
	x.skip(n)
	return nil
}

// quoted reads a string, with the escapes of Python.
func (x *lexer) quoted(s string) error {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == s[0]:
			x.add(kindString, b.String())
			x.skip(i + 1)
			return nil
		case c != '\\' || i+1 == len(s):
			b.WriteByte(c)
		default:
			n, text, err := escape(s[i+1:])
			if err != nil {
				return fmt.Errorf("line %d: %w", x.line, err)
			}
			b.WriteString(text)
			i += n
		}
	}
	return x.fail("a string has no end")
}

// escape reads what stands behind a backslash, and returns its length.
func escape(s string) (n int, text string, err error) {
	const from, to = "\\'\"abfnrtv", "\\'\"\a\b\f\n\r\t\v"
	if i := strings.IndexByte(from, s[0]); i >= 0 {
		return 1, to[i : i+1], nil
	}
	length, base := 0, 16
	switch c := s[0]; {
	case c == '\n':
		return 1, "", nil
	case c >= '0' && c <= '7':
		for n < 3 && n < len(s) && s[n] >= '0' && s[n] <= '7' {
			n++
		}
		base = 8
	case c == 'x':
		n, length = 1, 2
	case c == 'u':
		n, length = 1, 4
	case c == 'U':
		n, length = 1, 8
	case c == 'N':
		return 0, "", unsupported(`the escape \N`)
	case c >= utf8.RuneSelf:
		return 0, "", unsupported("a backslash ahead of a letter that is not ASCII")
	default:
		return 1, `\` + s[:1], nil
	}
	if base == 16 {
		if len(s) < n+length {
			return 0, "", fmt.Errorf("the escape %.10q is cut off", s)
		}
		s = s[:n+length]
	} else {
		s = s[:n]
	}
	r, err := strconv.ParseUint(s[n*(base/16):], base, 32)
	if err != nil || !utf8.ValidRune(rune(r)) {
		return 0, "", unsupported(fmt.Sprintf("the escape %.10q", s))
	}
	return len(s), string(rune(r)), nil
}
