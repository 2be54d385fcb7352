package extproc

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/requestkey"
)

// firstMessage returns the first message of a gRPC body, as far as it is there, and what follows it; of one that is
// compressed nothing. Before it stand whether it is compressed, and its length.
func firstMessage(body []byte) (message, rest []byte, whole bool) {
	const prefix = 5
	if len(body) < prefix {
		return nil, nil, false
	}
	n := uint64(binary.BigEndian.Uint32(body[1:]))
	message = body[prefix:]
	if whole = uint64(len(message)) >= n; whole {
		message, rest = message[:n], message[n:]
	}
	if body[0] != 0 {
		message = nil
	}
	return message, rest, whole
}

// maxKept bounds what is kept of a response.
const maxKept = 16 << 10

// A usageReader reads the tokens that a response reports out of its body. Of JSON and of server-sent events the last
// usage counts, which is searched in the last 8 KiB; gRPC messages are read until one is longer than maxKept.
type usageReader struct {
	reads  bool               // the body can be read
	method *requestkey.Method // of gRPC messages; nil = it is JSON or events
	kept   []byte
	usage  policy.Usage
	found  bool
}

// begin prepares for the body of a response.
func (u *usageReader) begin(h headers, m *requestkey.Method) {
	encoding, content := h.get("content-encoding"), h.get("content-type")
	*u = usageReader{method: m, usage: policy.NoUsage}
	u.reads = (encoding == "" || encoding == "identity") &&
		(m != nil || strings.Contains(content, "json") || strings.HasPrefix(content, "text/event-stream"))
}

// add takes a chunk.
func (u *usageReader) add(chunk []byte) {
	switch {
	case !u.reads:
	case u.method != nil:
		u.addMessages(chunk)
	default:
		const half = maxKept / 2
		chunk = chunk[max(len(chunk)-half, 0):]
		if len(u.kept)+len(chunk) > maxKept {
			u.kept = append(u.kept[:0], u.kept[len(u.kept)-half:]...)
		}
		u.kept = append(u.kept, chunk...)
	}
}

// addMessages reads each whole message, and keeps the beginning of the last one.
func (u *usageReader) addMessages(chunk []byte) {
	u.kept = append(u.kept, chunk...)
	for message, rest, whole := firstMessage(u.kept); whole; message, rest, whole = firstMessage(u.kept) {
		u.found = u.method.Usage(&u.usage, message) || u.found
		u.kept = rest
	}
	if len(u.kept) > maxKept {
		u.kept, u.reads = nil, false
	}
}

// usageName begins the usage of a response; inside a JSON string its quotes are escaped.
var usageName = []byte(`"usage":`)

// end returns the usage of a body that has ended, nil where it has none.
func (u *usageReader) end() *policy.Usage {
	if i := bytes.LastIndex(u.kept, usageName); i >= 0 && u.method == nil {
		u.found = requestkey.ReadUsage(&u.usage, append([]byte{'{'}, u.kept[i:]...))
	}
	u.kept = nil
	if !u.found {
		return nil
	}
	return &u.usage
}

// isResponses reports whether a path makes a response of OpenAI's Responses API.
func isResponses(path string) bool {
	path, _, _ = strings.Cut(path, "?")
	return strings.HasSuffix(path, "/responses")
}

// maxResponseHead bounds what is read of a response for its id.
const maxResponseHead = 8 << 10

// An idReader reads the id of a response of the Responses API from the beginning of its body.
type idReader struct {
	reads bool // the id may still come
	kept  []byte
}

// add takes a chunk, and returns the id once it is there.
func (r *idReader) add(chunk []byte) (id string) {
	if !r.reads {
		return ""
	}
	r.kept = append(r.kept, chunk[:min(len(chunk), maxResponseHead-len(r.kept))]...)
	id = requestkey.ResponseID(r.kept)
	if id != "" || len(r.kept) == maxResponseHead {
		*r = idReader{}
	}
	return id
}
