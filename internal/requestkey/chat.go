package requestkey

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
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
	m.turns.each(s, func(v value) {
		t := source{message: v.message()}
		role := m.role.first(&t)
		dst = appendText(append(dst, frameTurn), role.string())
		n := len(dst)
		var ok bool
		dst, ok = m.appendContent(dst, &t)
		unread = unread || !ok
		switch set := t.populated(); {
		case len(dst) > n:
			readable = true
		case set > 1 || role.kind == 0 && set > 0: // without a content: a call of a tool, say
			dst, readable = appendMedium(dst, "turn", alias(t.encoded())), true
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
func (m *Method) appendContent(dst []byte, turn *source) (_ []byte, ok bool) {
	ok = turn.typed == nil || m.content.leads(turn.typed.Descriptor(), []path{nil})
	begins := make([]int, 0, 8) // of what has been read, in dst; a part that has ended is one
	m.content.each(turn, func(v value) {
		begins = append(begins, len(dst))
		switch {
		case v.kind == kindEnd: // of a part, or of several
			begins = begins[:len(begins)-int(v.num)]
			read := len(dst) > begins[len(begins)-1]
			ok = ok && (read || v.message().populated() == 0)
		case v.kind == kindMessage:
			var read bool
			dst, read = appendMessage(dst, v.typed)
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
		dst = appendPart(dst, jsonValue{b: b})
	} else {
		dst = appendParts(dst, jsonValue{b: b})
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
		"function_call", "tool_call_id", "type"}
	partNames     = []string{"type", "text"}
	mediaNames    = []string{"url", "data", "file_id", "file_data"}
	callNames     = []string{"id", "function"}
	functionNames = []string{"name", "arguments"}
)

// renderChat renders the turns of an OpenAI chat, see render.go for the frames.
// The order of members inside a turn does not matter. Tools and documents stand
// ahead of the turns, as chat templates put them into the system prompt, and so do
// the instructions of the responses API and the system prompt of Anthropic's.
func renderChat(tools, documents, instructions, messages jsonValue) []byte {
	dst := make([]byte, 0, len(messages.b)+len(tools.b)+len(documents.b)+len(instructions.b))
	tools.each("[]", func(_ string, tool jsonValue) {
		dst = appendField(dst, 'T', alias(tool.appendValue(nil, 0)))
	})
	documents.each("[]", func(_ string, document jsonValue) {
		dst = appendField(dst, 'D', alias(document.appendValue(nil, 0)))
	})
	if len(instructions.b) > 0 {
		if system := appendParts(appendText([]byte{frameTurn}, "system"), instructions); len(system) > len("system")+1 {
			dst = append(dst, system...)
		}
	}
	turns := 0
	messages.each("[]", func(_ string, turn jsonValue) {
		if s, ok := turn.text(); ok { // a bare string is a turn without a role
			dst = appendTurn(dst, "", s)
		} else {
			dst = appendChatTurn(dst, turn)
		}
		turns++
	})
	if turns == 0 {
		return nil
	}
	return dst
}

// appendChatTurn appends a turn. Of one that was cut off it appends what is sure:
// a role must have been seen, a medium or the name of a call must be whole. Of an item of the responses API that has no
// role, like the output of a tool, it appends the hash.
func appendChatTurn(dst []byte, turn jsonValue) []byte {
	m := objectOf(turn, turnNames)
	role := m.val("role")
	if turn.cut && len(role.b) == 0 {
		return dst
	}
	s, _ := role.text()
	if dst = appendText(append(dst, frameTurn), s); role.cut {
		return dst
	}
	if kind, ok := m.val("type").text(); ok && s == "" {
		return appendMedium(dst, kind, alias(turn.b))
	}
	dst = appendString(dst, 'n', m.val("name"))
	dst = appendString(dst, 'r', m.val("tool_call_id"))
	reasoning := m.val("reasoning_content")
	if len(reasoning.b) == 0 {
		reasoning = m.val("reasoning")
	}
	dst = appendString(dst, 'k', reasoning)
	dst = appendParts(dst, m.val("content"))
	dst = appendString(dst, 'f', m.val("refusal"))
	dst = appendFunction(dst, m.val("function_call"))
	m.val("tool_calls").each("[]", func(_ string, v jsonValue) {
		call := objectOf(v, callNames)
		if dst = appendFunction(dst, call.val("function")); !v.cut {
			dst = appendString(dst, 'i', call.val("id"))
		}
	})
	return dst
}

// appendString appends a field if v is a string.
func appendString(dst []byte, letter byte, v jsonValue) []byte {
	if !v.is('"') {
		return dst
	}
	return v.appendText(append(dst, frameField, letter))
}

// appendParts appends a content: a string, or a list of parts.
func appendParts(dst []byte, v jsonValue) []byte {
	dst = appendString(dst, 't', v)
	v.each("[]", func(_ string, part jsonValue) {
		if part.is('{') {
			dst = appendPart(dst, part)
		} else {
			dst = appendString(dst, 't', part)
		}
	})
	return dst
}

// appendPart appends one part of a content. Text goes in as it is; of an image,
// a sound or another thing its kind and the hash of its address or data.
func appendPart(dst []byte, part jsonValue) []byte {
	p := objectOf(part, partNames)
	if text := p.val("text"); text.is('"') || part.cut {
		return appendString(dst, 't', text)
	}
	kind, _ := p.val("type").text()
	return appendMedium(dst, kind, address(part, kind))
}

// address returns what identifies a medium: its uuid or hash, its url, data or file
// id, or else its JSON.
func address(part jsonValue, kind string) string {
	ids := []string{"uuid", "hash", "mm_hash", "content_hash", kind}
	p := objectOf(part, ids)
	media := p.val(kind)
	inside := objectOf(media, mediaNames)
	return cmp.Or(p.text(ids...), inside.text(mediaNames...), alias(media.b), alias(part.b))
}

func appendFunction(dst []byte, function jsonValue) []byte {
	f := objectOf(function, functionNames)
	name, ok := f.val("name").text()
	if !ok {
		return dst
	}
	dst = appendField(dst, 'c', name)
	arguments := f.val("arguments")
	if arguments.is('{') { // as some clients send them
		return appendField(dst, 'a', alias(arguments.appendValue(nil, 0)))
	}
	return appendString(dst, 'a', arguments)
}
