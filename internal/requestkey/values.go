package requestkey

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/balancer/policy"
)

// first returns the first text of a slot. It aliases the message, and is borrowed where that can change.
func (s *source) first(sl slot) (text string, borrowed bool) {
	s.each(sl, func(v value) {
		if text == "" && (sl != slotSession || printable(v.text)) {
			text, borrowed = v.string(), v.borrowed
		}
	})
	return text, borrowed
}

// printable reports whether a session is text: what a field holds that once was a message is not.
func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' })
}

// fill sets dst, if it is empty, to a copy of the text of a slot.
func (s *source) fill(dst *string, sl slot) {
	if *dst != "" {
		return
	}
	text, borrowed := s.first(sl)
	if borrowed {
		text = strings.Clone(text)
	}
	*dst = text
}

// count returns the count of a slot. What lists hold is added up.
func (s *source) count(sl slot) (n int, ok bool) {
	sum := int64(0)
	s.each(sl, func(v value) {
		if x, valid := v.count(); valid {
			sum += int64(x)
			ok = true
		}
	})
	if !ok {
		return 0, false
	}
	return count(sum)
}

// count returns a value that is a number of tokens, or a text of one.
func (v *value) count() (int, bool) {
	switch {
	case v.kind == kindNumber:
		return count(v.num)
	case v.kind == kindIDs && len(v.ids) > 0:
		return count(int64(v.ids[0]))
	case v.text == "":
		return 0, false
	}
	return parseCount(v.text)
}

// count returns n if it can be a number of tokens.
func count(n int64) (int, bool) {
	if n < 0 || n > math.MaxInt32 {
		return 0, false
	}
	return int(n), true
}

func parseCount(s string) (int, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, false
	}
	return count(n)
}

// batchToken stands between the prompts of a batch of token ids.
const batchToken = 1<<32 - 1

// tokens returns the token ids of a prompt, without copying them where the message has them as one slice.
func (s *source) tokens() (ids []uint32) {
	batch := false // the next id belongs to another prompt
	s.each(slotTokens, func(v value) {
		if v.kind == kindElement {
			batch = len(ids) > 0
			return
		}
		if batch {
			ids, batch = append(ids, batchToken), false
		}
		ids = v.appendIDs(ids)
	})
	return ids
}

// appendIDs appends token ids. The first slice of them is not copied.
func (v *value) appendIDs(dst []uint32) []uint32 {
	switch {
	case v.kind == kindNumber:
		return append(dst, uint32(v.num))
	case v.kind == kindIDs && len(dst) == 0:
		return slices.Clip(v.ids)
	case v.kind == kindIDs:
		return append(dst, v.ids...)
	}
	return appendPacked(dst, bytesOf(v.text))
}

// texts returns the text of a prompt; several are a batch.
func (s *source) texts() string {
	var first string
	var more []string
	n := 0
	s.each(slotPrompt, func(v value) {
		switch {
		case v.kind == kindElement:
			return
		case n == 0:
			first = v.string()
		default:
			more = append(more, v.string())
		}
		n++
	})
	return renderBatch(first, more)
}

// prompt fills the prompt of a request: token ids, else text, else chat turns. It reports whether there are turns
// whose contents cannot be read.
func (m *Method) prompt(q *policy.Request, s *source) (unread bool) {
	p := policy.Prompt{Tokens: s.tokens()}
	if len(p.Tokens) == 0 {
		p.Text = s.texts()
	}
	if p.Empty() {
		p.Text, unread = m.chat(s)
	}
	if !p.Empty() {
		q.SetPrompt(p)
		m.mixMedia(q, s)
	}
	return unread
}

// marks are how much was there when each of the elements began that have not ended yet.
type marks struct {
	n    [maxDepth]int
	open int
}

func (m *marks) push(n int) {
	m.n[m.open] = n
	m.open++
}

func (m *marks) pop() int {
	m.open--
	return m.n[m.open]
}

// A medium is one, or several that cannot be distinguished.
type medium struct {
	hash uint64
	at   int64 // of the first placeholder, -1 = not known
}

// media returns the media of a message that holds some. Several pair with their offsets one by one.
func (s *source) media(m message) (all []medium) {
	var ids []string
	s.each(slotMediaID, func(v value) {
		if id := v.string(); id != "" {
			ids = append(ids, id)
		}
	})
	var offsets []int64
	var in marks
	s.each(slotMediaOffset, func(v value) {
		switch {
		case v.kind != kindElement:
			offsets = append(offsets, v.num)
		case v.begins:
			in.push(len(offsets))
		case len(offsets) == in.pop():
			offsets = append(offsets, 0) // which is not encoded
		}
	})
	switch {
	case len(ids) > 0 && len(ids) == len(offsets):
		for i, id := range ids {
			all = append(all, medium{xxh3.HashString(id), offsets[i]})
		}
	case len(ids) == 1:
		all = append(all, medium{xxh3.HashString(ids[0]), -1})
	case m.populated() > 0:
		at := int64(-1)
		if len(offsets) > 0 {
			at = slices.Min(offsets)
		}
		all = append(all, medium{xxh3.Hash(m.encoded()), at})
	}
	return all
}

// mixMedia makes the prompt of a request that of its media: the id of each is mixed into the token at its first
// placeholder, and so into the block of that token and those that follow. Media whose place is not known go into the
// cache salt, and so into every block.
func (m *Method) mixMedia(q *policy.Request, s *source) {
	var all []medium
	for alt := range s.f.paths[slotMedia] {
		s.alternative(slotMedia, alt, func(v value) {
			in := m.medium.in(v.msg)
			all = append(all, in.media(v.msg)...)
		})
	}
	if len(all) == 0 {
		return
	}
	q.Prompt.Tokens = slices.Clone(q.Prompt.Tokens)
	for _, x := range all {
		if x.at >= 0 && x.at < int64(len(q.Prompt.Tokens)) {
			q.Prompt.Tokens[x.at] ^= uint32(x.hash ^ x.hash>>32)
		} else {
			q.CacheSalt += "\x00" + strconv.FormatUint(x.hash, 16)
		}
	}
}
