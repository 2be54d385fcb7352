package extproc

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/requestkey"
)

// prefix is the length of what stands before a message in the body of a gRPC call: whether it is compressed, and its
// length.
const prefix = 5

// firstMessage returns the first message of a gRPC body, as far as it is there; of one that is compressed nothing.
func firstMessage(body []byte) (message []byte, whole bool) {
	if len(body) < prefix {
		return nil, false
	}
	n := uint64(binary.BigEndian.Uint32(body[1:]))
	message = body[prefix:]
	if whole = uint64(len(message)) >= n; whole {
		message = message[:n]
	}
	if body[0] != 0 {
		message = nil
	}
	return message, whole
}

// A bodyKind is what the body of a response consists of.
type bodyKind uint8

const (
	unread   bodyKind = iota // it has no usage
	document                 // one JSON object
	events                   // server-sent events
	messages                 // of gRPC
)

func kindOf(h headers, isGRPC bool) bodyKind {
	encoding, content := h.get("content-encoding"), h.get("content-type")
	switch {
	case isGRPC:
		return messages
	case encoding != "" && encoding != "identity":
	case strings.HasPrefix(content, "text/event-stream"):
		return events
	case strings.HasPrefix(content, "application/json"):
		return document
	}
	return unread
}

// A usageReader reads the tokens that a response reports out of its body. It keeps at most maxKept bytes: an event or
// message that is longer has no usage, and of a document its end is searched.
type usageReader struct {
	kind   bodyKind
	method *requestkey.Method // of gRPC messages
	kept   []byte
	cut    bool // the beginning of the document or event is not kept
	skip   int  // bytes of a message that are not read
	usage  policy.Usage
	found  bool
}

// usageName is what a document or an event with usage has; inside a JSON string its quotes are escaped.
var usageName = []byte(`"usage":`)

func (u *usageReader) add(chunk []byte) {
	switch u.kind {
	case document:
		u.keepEnd(chunk)
	case events:
		u.addEvents(chunk)
	case messages:
		u.addMessages(chunk)
	}
}

// keepEnd keeps the end of what was kept and the chunk.
func (u *usageReader) keepEnd(chunk []byte) {
	if over := len(u.kept) + len(chunk) - maxKept; over > 0 {
		u.cut = true
		chunk = chunk[max(0, len(chunk)-maxKept):]
		u.kept = append(u.kept[:0], u.kept[min(over, len(u.kept)):]...)
	}
	u.kept = append(u.kept, chunk...)
}

// addEvents reads each whole line, and keeps the last one.
func (u *usageReader) addEvents(chunk []byte) {
	for len(chunk) > 0 {
		end := bytes.IndexByte(chunk, '\n')
		if end < 0 {
			if u.cut = u.cut || len(u.kept)+len(chunk) > maxKept; u.cut {
				u.kept = u.kept[:0]
			} else {
				u.kept = append(u.kept, chunk...)
			}
			return
		}
		line := chunk[:end]
		if len(u.kept) > 0 {
			line = append(u.kept, line...)
		}
		if !u.cut {
			u.read(line)
		}
		u.kept, u.cut, chunk = u.kept[:0], false, chunk[end+1:]
	}
}

// addMessages reads each whole message, and keeps the last one.
func (u *usageReader) addMessages(chunk []byte) {
	for len(chunk) > 0 {
		if n := min(u.skip, len(chunk)); n > 0 {
			u.skip, chunk = u.skip-n, chunk[n:]
			continue
		}
		want := prefix - len(u.kept)
		if want <= 0 {
			size := uint64(binary.BigEndian.Uint32(u.kept[1:])) + prefix
			if size > maxKept {
				u.skip, u.kept = int(size)-len(u.kept), u.kept[:0]
				continue
			}
			want = int(size) - len(u.kept)
		}
		n := min(want, len(chunk))
		u.kept, chunk = append(u.kept, chunk[:n]...), chunk[n:]
		if len(u.kept) < prefix {
			continue
		}
		if message, whole := firstMessage(u.kept); whole {
			if u.method.HasUsage() {
				u.start()
				u.found = u.method.Usage(&u.usage, message) || u.found
			}
			u.kept = u.kept[:0]
		}
	}
}

// read reads what may have usage in JSON.
func (u *usageReader) read(raw []byte) {
	if bytes.Contains(raw, usageName) {
		u.start()
		u.found = requestkey.ReadUsage(&u.usage, raw) || u.found
	}
}

// start prepares the first look at usage.
func (u *usageReader) start() {
	if !u.found {
		u.usage = policy.NoUsage
	}
}

// end returns the usage of a body that has ended, nil where it has none.
func (u *usageReader) end() *policy.Usage {
	if u.kind == document {
		raw := u.kept
		if i := bytes.LastIndex(raw, usageName); u.cut && i >= 0 {
			raw = append([]byte{'{'}, raw[i:]...)
		}
		u.read(raw)
	}
	u.kept = nil
	if !u.found {
		return nil
	}
	return &u.usage
}
