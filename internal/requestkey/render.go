package requestkey

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"
	"unsafe"
)

// A chat or a batch becomes one text by way of bytes that no UTF-8 text has:
//
//	chat    = tool* document* turn*
//	tool    = FE 'T' json                   a tool offered, by its value
//	document = FE 'D' json                  a document for the template, by its value
//	turn    = FF role field*
//	field   = FE letter value               t text, n name, m media (kind and hash of its
//	                                        address or data), c name of a called tool, a its
//	                                        arguments, i its id, r id answered, k reasoning, f refusal
//	batch   = prompt (FD prompt)*
//
// Text that is not UTF-8 has its bytes FB to FF escaped, so the frames stay
// unambiguous. Nothing is written behind a turn, so one more turn only appends.
const (
	frameTurn   = 0xFF
	frameField  = 0xFE
	frameBatch  = 0xFD
	frameEscape = 0xFB
)

// escaper and unescaper do so with text that is not UTF-8, and take it back.
var (
	escaper = strings.NewReplacer("\xFB", "\xFB\x00", "\xFC", "\xFB\x01", "\xFD", "\xFB\x02", "\xFE", "\xFB\x03",
		"\xFF", "\xFB\x04")
	unescaper = strings.NewReplacer("\xFB\x00", "\xFB", "\xFB\x01", "\xFC", "\xFB\x02", "\xFD", "\xFB\x03", "\xFE",
		"\xFB\x04", "\xFF")
)

func appendText(dst []byte, s string) []byte {
	if !utf8.ValidString(s) {
		s = escaper.Replace(s)
	}
	return append(dst, s...)
}

func appendField(dst []byte, letter byte, s string) []byte {
	return appendText(append(dst, frameField, letter), s)
}

// appendTurn renders a turn that has a role and text only.
func appendTurn(dst []byte, role, content string) []byte {
	dst = appendText(append(dst, frameTurn), role)
	return appendField(dst, 't', content)
}

// A batch is prompts as one text; one prompt is itself.
type batch struct {
	text string
	n    int
	all  []byte // once there are several
}

func (b *batch) add(prompt string) {
	switch b.n++; b.n {
	case 1:
		b.text = prompt
		return
	case 2:
		b.all = appendText(nil, b.text)
	}
	b.all = appendText(append(b.all, frameBatch), prompt)
	b.text = alias(b.all)
}

// alias returns b as a string that shares its memory.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// A Chat is what [ReadChat] finds in a prompt.
type Chat struct {
	Tools    []json.RawMessage // those offered
	Messages []map[string]any  // as OpenAI's API has them; several parts of text are joined by a line end
	Media    bool              // there are images, sounds or the like, of which only hashes are known, or documents
}

// IsChat reports whether the text of a prompt is a chat.
func IsChat(text string) bool {
	return text != "" && (text[0] == frameTurn || text[0] == frameField)
}

// ReadChat reads the chat that the text of a prompt was made from, as far as such a
// text shows. ok is false if it is none. What is returned aliases the text and must
// not be kept longer.
func ReadChat(text string) (c Chat, ok bool) {
	for text != "" {
		frame := text[0]
		text = text[1:]
		end := slices.IndexFunc(bytesOf(text), func(c byte) bool { return c >= frameBatch })
		if end < 0 {
			end = len(text)
		}
		value := text[:end]
		if text = text[end:]; strings.IndexByte(value, frameEscape) >= 0 {
			value = unescaper.Replace(value)
		}
		switch {
		case frame == frameTurn:
			c.Messages = append(c.Messages, map[string]any{"role": value, "content": nil})
		case frame != frameField || value == "" || !c.add(value[0], value[1:]):
			return Chat{}, false
		}
	}
	return c, len(c.Messages) > 0
}

// AnswersIn returns where the turns of assistants begin in the text of a chat, but for one at its beginning: what stands
// ahead of each was a request.
func AnswersIn(text string) (places []int) {
	for at, c := range bytesOf(text) {
		if role, _ := strings.CutPrefix(text[at+1:], "assistant"); c == frameTurn && at > 0 && len(role) < len(text)-at-1 &&
			(role == "" || role[0] >= frameBatch) {
			places = append(places, at)
		}
	}
	return places
}

// IsTurnEnd reports whether a prompt may go on at a place: anywhere in a text, between two turns of a chat.
func IsTurnEnd(text string, at int) bool {
	return !IsChat(text) || at == len(text) || text[at] == frameTurn
}

// members are the fields that are members of a message.
var members = map[byte]string{'n': "name", 'r': "tool_call_id", 'k': "reasoning_content", 'f': "refusal"}

// add adds a field to the tools or the last message.
func (c *Chat) add(field byte, value string) bool {
	if len(c.Messages) == 0 {
		switch field {
		case 'T':
			c.Tools = append(c.Tools, json.RawMessage(value))
		case 'D':
			c.Media = true
		}
		return field == 'T' || field == 'D'
	}
	m := c.Messages[len(c.Messages)-1]
	calls, _ := m["tool_calls"].([]map[string]any)
	switch field {
	case 't':
		if before, more := m["content"].(string); more {
			value = before + "\n" + value
		}
		m["content"] = value
	case 'm':
		c.Media = true
	case 'c':
		function := map[string]string{"name": value, "arguments": ""}
		m["tool_calls"] = append(calls, map[string]any{"type": "function", "function": function})
	case 'a', 'i':
		if len(calls) == 0 {
			return false
		}
		if last := calls[len(calls)-1]; field == 'i' {
			last["id"] = value
		} else {
			last["function"].(map[string]string)["arguments"] = value
		}
	default:
		name, ok := members[field]
		if ok && value != "" {
			m[name] = value
		}
		return ok
	}
	return true
}
