package bpe

import "strings"

// A scanner finds the end of the piece that begins at i, as its pattern does. i is inside the text.
type scanner interface {
	scan(text string, i int) (end int)
}

// scanners are the patterns that are scanned by hand.
var scanners = map[string]scanner{
	// GPT-2, and ByteLevel's own
	`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`: gpt2{},
	// cl100k, Llama 3
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: cl100k{digits: 3},
	// cl100k as tiktoken has it today: blanks at the end are one piece
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+\z|\s*[\r\n]+|\s+(?!\S)|\s+`: cl100k{digits: 3, tail: true},
	// Qwen 2 to 3
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: cl100k{digits: 1},
	// o200k, Llama 4, gpt-oss
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`: o200k{digits: 3, contractions: true},
	// Mistral's tekken
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`: o200k{digits: 1},
}

type gpt2 struct{}

func (gpt2) scan(text string, i int) (end int) {
	if end := contraction(text, i, false); end > i {
		return end
	}
	start := i
	if text[i] == ' ' {
		i++
	}
	c, n := at(text, i)
	switch {
	case n == 0, c&space != 0:
		return blank(text, start)
	case c&letter != 0:
		return run(text, i, letter)
	case c&number != 0:
		return run(text, i, number)
	}
	return others(text, i)
}

type cl100k struct {
	digits int
	tail   bool // blanks at the end of the text are one piece
}

func (s cl100k) scan(text string, i int) (end int) {
	if end := contraction(text, i, true); end > i {
		return end
	}
	c, n := at(text, i)
	if c&(letter|number|newline) == 0 {
		if next, _ := at(text, i+n); next&letter != 0 {
			i, c = i+n, letter
		}
	}
	if c&letter != 0 {
		return run(text, i, letter)
	}
	if s.tail && c&space != 0 && run(text, i, space) == len(text) {
		return len(text)
	}
	return rest(text, i, c, s.digits, "\r\n")
}

type o200k struct {
	digits       int
	contractions bool
}

func (s o200k) scan(text string, i int) (end int) {
	c, n := at(text, i)
	if end = word(text, i, c, n); end > i {
		if s.contractions {
			end = max(end, contraction(text, end, true))
		}
		return end
	}
	return rest(text, i, c, s.digits, "\r\n/")
}

// word finds a word in lower case, capitals before it or not, else one in capitals;
// of each the form that takes a character before it along comes first.
func word(text string, i int, c class, n int) (end int) {
	before := c&(letter|number|newline) == 0
	if before {
		if end = lowered(text, i+n); end > 0 {
			return end
		}
	}
	if end = lowered(text, i); end > 0 {
		return end
	}
	if before {
		if end = run(text, i+n, upper); end > i+n {
			return end
		}
	}
	return run(text, i, upper)
}

// lowered is [upper]*[lower]+: some characters are both, and where nothing in lower
// case follows the capitals, the last of these that is both has to do.
func lowered(text string, i int) (end int) {
	both := 0
	for {
		c, n := at(text, i)
		if c&upper == 0 {
			break
		}
		i += n
		if c&lower != 0 {
			both = i
		}
	}
	if end = run(text, i, lower); end > i {
		return end
	}
	return both
}

// rest is what the patterns of OpenAI's newer encodings have in common: digits, signs
// and blanks. c is the class at i.
func rest(text string, i int, c class, digits int, after string) (end int) {
	if c&number != 0 {
		for end = i; digits > 0 && c&number != 0; digits-- {
			_, n := at(text, end)
			end += n
			c, _ = at(text, end)
		}
		return end
	}
	signs := i
	if text[i] == ' ' {
		signs++
	}
	if end = others(text, signs); end > signs {
		for end < len(text) && strings.IndexByte(after, text[end]) >= 0 {
			end++
		}
		return end
	}
	far := run(text, i, space)
	if k := strings.LastIndexAny(text[i:far], "\r\n"); k >= 0 {
		return i + k + 1
	}
	return blank(text, i)
}

// blank is \s+(?!\S)|\s+: all blanks, but for the last before something else.
func blank(text string, i int) (end int) {
	end = run(text, i, space)
	if end == len(text) {
		return end
	}
	last := end - 1
	for text[last]&0xC0 == 0x80 {
		last--
	}
	if last > i {
		end = last
	}
	return end
}

// contraction returns the end of one of 's 't 're 've 'm 'll 'd at i, or i.
func contraction(text string, i int, anyCase bool) int {
	if i+1 >= len(text) || text[i] != '\'' {
		return i
	}
	fold := func(b byte) byte {
		if anyCase && b >= 'A' && b <= 'Z' {
			return b | 0x20
		}
		return b
	}
	first, second := fold(text[i+1]), byte(0)
	if i+2 < len(text) {
		second = fold(text[i+2])
	}
	switch {
	case first == 's', first == 't', first == 'm', first == 'd':
		return i + 2
	case first == 'r' && second == 'e', first == 'v' && second == 'e', first == 'l' && second == 'l':
		return i + 3
	case anyCase && strings.HasPrefix(text[i+1:], "ſ"): // folds to s
		return i + 1 + len("ſ")
	}
	return i
}
