package requestkey

import "strings"

// A Chat is what [ReadChat] finds in a prompt.
type Chat struct {
	Tools []string // JSON of each tool offered
	Turns []Turn
}

// A Turn is one message of a chat. What it did not have is "" or nil.
type Turn struct {
	Role      string
	Name      string
	Text      []string // the parts of its content
	Calls     []ToolCall
	Answers   string // id of the tool call that it answers
	Reasoning string
	Refusal   string
	Media     bool // it has images, sounds or the like, of which only hashes are known
}

// A ToolCall is a call that the model asked for. Arguments is JSON.
type ToolCall struct{ ID, Name, Arguments string }

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
		end := nextFrame(text)
		value := text[:end]
		text = text[end:]
		switch {
		case frame == frameTurn:
			c.Turns = append(c.Turns, Turn{Role: unescapeText(value)})
		case frame != frameField || value == "":
			return Chat{}, false
		case value[0] == 'T' && len(c.Turns) == 0:
			c.Tools = append(c.Tools, unescapeText(value[1:]))
		case len(c.Turns) == 0 || !c.Turns[len(c.Turns)-1].set(value[0], unescapeText(value[1:])):
			return Chat{}, false
		}
	}
	return c, len(c.Turns) > 0
}

// nextFrame returns where the next frame begins, or the end.
func nextFrame(s string) int {
	for i := range len(s) {
		if s[i] >= frameBatch {
			return i
		}
	}
	return len(s)
}

func (t *Turn) set(field byte, value string) bool {
	switch field {
	case 't':
		t.Text = append(t.Text, value)
	case 'n':
		t.Name = value
	case 'm':
		t.Media = true
	case 'c':
		t.Calls = append(t.Calls, ToolCall{Name: value})
	case 'r':
		t.Answers = value
	case 'k':
		t.Reasoning = value
	case 'f':
		t.Refusal = value
	case 'a', 'i':
		if len(t.Calls) == 0 {
			return false
		}
		last := &t.Calls[len(t.Calls)-1]
		if field == 'a' {
			last.Arguments = value
		} else {
			last.ID = value
		}
	default:
		return false
	}
	return true
}

// unescapeText takes back what appendText did to text that is not UTF-8.
func unescapeText(s string) string {
	if strings.IndexByte(s, frameEscape) < 0 {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == frameEscape && i+1 < len(s) {
			i++
			c = frameEscape + s[i]
		}
		b = append(b, c)
	}
	return string(b)
}
