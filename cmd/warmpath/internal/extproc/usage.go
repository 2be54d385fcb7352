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

// maxKept bounds what is kept of a response.
const maxKept = 16 << 10

// A usageReader reads the tokens that a response reports out of its body. Of JSON and of server-sent events the last
// usage counts, which is searched in the last 8 KiB; of gRPC messages each is read that is no longer than maxKept.
type usageReader struct {
	reads  bool               // the body can be read
	method *requestkey.Method // of gRPC messages; nil = it is JSON or events
	kept   []byte
	skip   int // bytes of a message that are not read
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
		switch over := len(u.kept)+len(chunk) > maxKept; {
		case over && len(chunk) > half:
			u.kept, chunk = u.kept[:0], chunk[len(chunk)-half:]
		case over:
			u.kept = append(u.kept[:0], u.kept[len(u.kept)-half:]...)
		}
		u.kept = append(u.kept, chunk...)
	}
}

// addMessages reads each whole message, and keeps the beginning of the last one.
func (u *usageReader) addMessages(chunk []byte) {
	for len(chunk) > 0 {
		if n := min(u.skip, len(chunk)); n > 0 {
			u.skip, chunk = u.skip-n, chunk[n:]
			continue
		}
		want := prefix
		if len(u.kept) >= prefix {
			want += int(binary.BigEndian.Uint32(u.kept[1:]))
		}
		if want > maxKept {
			u.skip, u.kept = want-len(u.kept), u.kept[:0]
			continue
		}
		n := min(want-len(u.kept), len(chunk))
		u.kept, chunk = append(u.kept, chunk[:n]...), chunk[n:]
		if message, whole := firstMessage(u.kept); whole {
			u.found = u.method.Usage(&u.usage, message) || u.found
			u.kept = u.kept[:0]
		}
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
