package requestkey

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// chat renders chat turns that are messages. Where a content cannot be read there is no chat, and unread is true where
// there are turns.
func (m *Method) chat(s *source) (chat string, unread bool) {
	var dst []byte
	readable := false
	s.each(slotTurn, func(v value) {
		t := m.turn.in(v.msg)
		role, _ := t.first(slotRole)
		dst = appendText(append(dst, frameTurn), role)
		n := len(dst)
		var ok bool
		dst, ok = t.appendContent(dst)
		unread = unread || !ok
		switch set := v.msg.populated(); {
		case len(dst) > n:
			readable = true
		case set > 1 || role == "" && set > 0: // without a content: a call of a tool, say
			dst, readable = appendMedium(dst, "turn", alias(v.msg.encoded())), true
		default:
			dst = appendField(dst, 't', "")
		}
	})
	if readable && !unread {
		return alias(dst), false
	}
	return "", len(dst) > 0
}

// appendContent appends the content of a turn that is a message; ok is false if it cannot be read.
func (s *source) appendContent(dst []byte) (_ []byte, ok bool) {
	ok = s.typed == nil || slices.ContainsFunc(s.f.paths[slotContent], func(p path) bool {
		return p.leads(s.typed.Descriptor(), slotContent)
	})
	var in marks
	s.each(slotContent, func(v value) {
		switch {
		case v.kind == kindElement && v.begins: // a part, or several
			in.push(len(dst))
		case v.kind == kindElement:
			grew := len(dst) > in.pop()
			ok = ok && (grew || v.msg.populated() == 0)
		case v.kind == kindMessage:
			var read bool
			dst, read = appendMessage(dst, v.msg.typed)
			ok = ok && read
		case v.kind == kindNumber:
			dst = appendField(dst, 't', strconv.FormatInt(v.num, 10))
		case v.text != "":
			dst = appendField(dst, 't', v.text)
		}
	})
	return dst, ok
}

// appendMessage appends a content that is a message, as the HTTP endpoint reads what its JSON would be: a
// google.protobuf.Value, or one of several parts. Of a part that has no text the hash is taken.
func appendMessage(dst []byte, m protoreflect.Message) (_ []byte, ok bool) {
	b, err := protojson.MarshalOptions{UseProtoNames: true, AllowPartial: true}.Marshal(m.Interface())
	var compact bytes.Buffer // protojson's spaces differ from program to program
	if err == nil {
		err = json.Compact(&compact, b)
	}
	if b = compact.Bytes(); err != nil || len(b) == 0 {
		return dst, false
	}
	before := len(dst)
	if b[0] == '{' {
		dst = appendPart(dst, b, false)
	} else {
		dst = appendContent(dst, b)
	}
	return dst, len(dst) > before || b[0] == 'n' // null
}

// appendMedium appends the hash of something whose content is not text.
func appendMedium(dst []byte, kind, content string) []byte {
	sum := xxh3.HashString128(content).Bytes()
	return hex.AppendEncode(append(appendField(dst, 'm', kind), ' '), sum[:])
}

// Members of what a chat consists of.
var (
	turnNames = []string{"role", "name", "content", "reasoning_content", "reasoning", "refusal", "tool_calls",
		"function_call", "tool_call_id"}
	partNames     = []string{"type", "text"}
	mediaNames    = []string{"url", "data", "file_id", "file_data"}
	callNames     = []string{"id", "function"}
	functionNames = []string{"name", "arguments"}
)

// renderChat renders the turns of an OpenAI chat, see render.go for the frames.
// The order of members inside a turn does not matter. Tools stand ahead of the
// turns, as chat templates put them into the system prompt.
func renderChat(tools, messages []byte) []byte {
	dst := make([]byte, 0, len(messages)+len(tools))
	for w := walk(tools); w.array && w.next(); {
		dst = appendField(dst, 'T', alias(w.val))
	}
	turns := 0
	for w := walk(messages); w.array && w.next(); {
		if s, ok := unquote(w.val); ok { // a bare string is a turn without a role
			dst = appendTurn(dst, "", s)
		} else {
			dst = appendChatTurn(dst, w.val, w.cut)
		}
		turns++
	}
	if turns == 0 {
		return nil
	}
	return dst
}

// appendChatTurn appends a turn. Of one that was cut off it appends what is sure:
// a role must have been seen, a medium or the name of a call must be whole.
func appendChatTurn(dst, turn []byte, cut bool) []byte {
	m := objectOf(turn, turnNames)
	if cut && m.val("role") == nil {
		return dst
	}
	role, _ := unquote(m.val("role"))
	if dst = appendText(append(dst, frameTurn), role); m.cut == "role" {
		return dst
	}
	dst = appendString(dst, 'n', m.val("name"))
	dst = appendString(dst, 'r', m.val("tool_call_id"))
	reasoning := m.val("reasoning_content")
	if reasoning == nil {
		reasoning = m.val("reasoning")
	}
	dst = appendString(dst, 'k', reasoning)
	dst = appendContent(dst, m.val("content"))
	dst = appendString(dst, 'f', m.val("refusal"))
	dst = appendFunction(dst, m.val("function_call"))
	for w := walk(m.val("tool_calls")); w.array && w.next(); {
		call := objectOf(w.val, callNames)
		if dst = appendFunction(dst, call.val("function")); !w.cut {
			dst = appendString(dst, 'i', call.val("id"))
		}
	}
	return dst
}

// appendString appends a field if v is a string.
func appendString(dst []byte, letter byte, v []byte) []byte {
	if len(v) == 0 || v[0] != '"' {
		return dst
	}
	n, whole := stringEnd(v)
	if v = v[1:n]; whole {
		v = v[:len(v)-1]
	}
	return unescape(append(dst, frameField, letter), v, whole)
}

// appendContent appends a content: a string, or parts.
func appendContent(dst, v []byte) []byte {
	if len(v) == 0 || v[0] != '[' {
		return appendString(dst, 't', v)
	}
	for w := walk(v); w.next(); {
		if w.val[0] == '{' {
			dst = appendPart(dst, w.val, w.cut)
		} else {
			dst = appendString(dst, 't', w.val)
		}
	}
	return dst
}

// appendPart appends one part of a content. Text goes in as it is; of an image,
// a sound or another thing its kind and the hash of its address or data.
func appendPart(dst, part []byte, cut bool) []byte {
	p := objectOf(part, partNames)
	if text := p.val("text"); len(text) > 0 && text[0] == '"' {
		return appendString(dst, 't', text)
	}
	if cut {
		return dst
	}
	kind, _ := unquote(p.val("type"))
	return appendMedium(dst, kind, address(part, kind))
}

// address returns what identifies a medium: its uuid or hash, its url, data or file
// id, or else its JSON.
func address(part []byte, kind string) string {
	p := objectOf(part, []string{"uuid", "hash", "mm_hash", "content_hash", kind})
	media := p.val(kind)
	inside := objectOf(media, mediaNames)
	for _, v := range append(p.vals[:5:5], inside.vals[:4]...) {
		if s, ok := unquote(v); ok && s != "" {
			return s
		}
	}
	if len(media) > 0 {
		return alias(media)
	}
	return alias(part)
}

func appendFunction(dst, function []byte) []byte {
	f := objectOf(function, functionNames)
	name, ok := unquote(f.val("name"))
	if !ok {
		return dst
	}
	dst = appendField(dst, 'c', name)
	arguments := f.val("arguments")
	if len(arguments) > 0 && arguments[0] == '{' { // as some clients send them
		return appendField(dst, 'a', alias(arguments))
	}
	return appendString(dst, 'a', arguments)
}
