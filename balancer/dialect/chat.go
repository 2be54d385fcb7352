package dialect

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
	var role, name, content, reasoning, refusal, calls, call, answers []byte
	w := walk(turn)
	for w.next() {
		switch w.key {
		case "role":
			role = w.val
		case "name":
			name = w.val
		case "content":
			content = w.val
		case "reasoning_content", "reasoning":
			reasoning = w.val
		case "refusal":
			refusal = w.val
		case "tool_calls":
			calls = w.val
		case "function_call":
			call = w.val
		case "tool_call_id":
			answers = w.val
		}
	}
	if cut && role == nil {
		return dst
	}
	s, _ := unquote(role)
	dst = appendText(append(dst, frameTurn), s)
	if w.cut && w.key == "role" {
		return dst
	}
	dst = appendString(dst, 'n', name)
	dst = appendString(dst, 'r', answers)
	dst = appendString(dst, 'k', reasoning)
	dst = appendContent(dst, content)
	dst = appendString(dst, 'f', refusal)
	if len(call) > 0 && call[0] == '{' {
		dst = appendFunction(dst, call)
	}
	for w := walk(calls); w.array && w.next(); {
		dst = appendCall(dst, w.val, w.cut)
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
	var kind string
	var text []byte
	for w := walk(part); w.next(); {
		switch w.key {
		case "type":
			kind, _ = unquote(w.val)
		case "text":
			text = w.val
		}
	}
	if len(text) > 0 && text[0] == '"' {
		return appendString(dst, 't', text)
	}
	if cut {
		return dst
	}
	var media []byte
	for w := walk(part); w.next(); {
		if w.key == kind {
			media = w.val
		}
	}
	return appendMedium(dst, kind, address(media, part))
}

// address returns what identifies a medium: its uuid or hash, its url, data or file
// id, or else its JSON.
func address(media, part []byte) string {
	for w := walk(part); w.next(); {
		switch w.key {
		case "uuid", "hash", "mm_hash", "content_hash":
			if s, ok := unquote(w.val); ok && s != "" {
				return s
			}
		}
	}
	if s, ok := unquote(media); ok {
		return s
	}
	for w := walk(media); w.next(); {
		switch w.key {
		case "url", "data", "file_id", "file_data":
			if s, ok := unquote(w.val); ok {
				return s
			}
		}
	}
	if len(media) > 0 {
		return alias(media)
	}
	return alias(part)
}

func appendCall(dst, call []byte, cut bool) []byte {
	var id, function []byte
	for w := walk(call); w.next(); {
		switch w.key {
		case "id":
			id = w.val
		case "function":
			function = w.val
		}
	}
	if dst = appendFunction(dst, function); cut {
		return dst
	}
	return appendString(dst, 'i', id)
}

func appendFunction(dst, function []byte) []byte {
	var name, arguments []byte
	for w := walk(function); w.next(); {
		switch w.key {
		case "name":
			name = w.val
		case "arguments":
			arguments = w.val
		}
	}
	s, ok := unquote(name)
	if !ok {
		return dst
	}
	dst = appendField(dst, 'c', s)
	if len(arguments) > 0 && arguments[0] == '{' { // as some clients send them
		return appendField(dst, 'a', alias(arguments))
	}
	return appendString(dst, 'a', arguments)
}
