package bpe

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// class is what the split patterns ask of a character, as bits.
type class uint8

const (
	letter  class = 1 << iota // \p{L}
	number                    // \p{N}
	space                     // \s
	newline                   // \r \n, which are space too
	upper                     // \p{Lu} \p{Lt} \p{Lm} \p{Lo} \p{M}
	lower                     // \p{Ll} \p{Lm} \p{Lo} \p{M}
)

var ascii = func() (t [utf8.RuneSelf]class) {
	for r := range t {
		t[r] = classOf(rune(r))
	}
	return t
}()

// plane has the classes of Unicode's first plane, which take long to find out.
var plane = sync.OnceValue(func() *[1 << 16]class {
	t := new([1 << 16]class)
	for r := range t {
		t[r] = classOf(rune(r))
	}
	return t
})

func classOf(r rune) class {
	switch {
	case r == '\r', r == '\n':
		return space | newline
	case unicode.IsSpace(r):
		return space
	case unicode.IsLower(r):
		return letter | lower
	case unicode.IsUpper(r), unicode.IsTitle(r):
		return letter | upper
	case unicode.IsLetter(r):
		return letter | upper | lower
	case unicode.IsNumber(r):
		return number
	case unicode.IsMark(r):
		return upper | lower
	}
	return 0
}

// at returns the class and the width of the character at i; width 0 is the end.
func at(text string, i int) (class, int) {
	if i >= len(text) {
		return 0, 0
	}
	if c := text[i]; c < utf8.RuneSelf {
		return ascii[c], 1
	}
	r, n := utf8.DecodeRuneInString(text[i:])
	if t := plane(); int(r) < len(t) {
		return t[r], n
	}
	return classOf(r), n
}

// run returns the end of the characters from i that have one of the classes.
func run(text string, i int, of class) int {
	for {
		c, n := at(text, i)
		if n == 0 || c&of == 0 {
			return i
		}
		i += n
	}
}

// others returns the end of the characters from i that are neither letter nor
// number nor space.
func others(text string, i int) int {
	for {
		c, n := at(text, i)
		if n == 0 || c&(letter|number|space) != 0 {
			return i
		}
		i += n
	}
}
