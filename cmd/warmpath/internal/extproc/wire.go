package extproc

import (
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/internal/protofield"
)

// Kinds of messages: the fields of ProcessingRequest.
const (
	requestHeaders   = 2
	responseHeaders  = 3
	requestBody      = 4
	responseBody     = 5
	requestTrailers  = 6
	responseTrailers = 7
)

// How bodies are sent: ProcessingMode.BodySendMode.
const (
	buffered        = 2
	bufferedPartial = 3
	duplex          = 4
	grpcMessages    = 5
)

// codec reads and writes the messages of ext_proc without copying bodies, and all others as protobuf does.
type codec struct{ encoding.CodecV2 }

// Marshal implements [encoding.CodecV2].
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if a, ok := v.(answer); ok {
		return mem.BufferSlice(a), nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements [encoding.CodecV2].
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if m, ok := v.(*message); ok {
		return m.read(data.Materialize())
	}
	return c.CodecV2.Unmarshal(data, v)
}

// A message is a ProcessingRequest: the gateway's.
type message struct {
	kind     protowire.Number
	headers  headers // or trailers
	body     []byte
	end      bool   // of the stream
	metadata []byte // core.v3.Metadata
	config   []byte // ProtocolConfiguration; nil = none
	observes bool   // the gateway wants no answer
}

// read reads an encoded message, which the message aliases.
func (m *message) read(raw []byte) error {
	*m = message{}
	at, whole := fields(raw)
	if !whole {
		return status.Error(codes.InvalidArgument, "the message is no ProcessingRequest")
	}
	m.metadata, m.observes, m.config = at[8].Bytes, at[10].Value != 0, at[11].Bytes
	for kind := requestHeaders; kind <= responseTrailers; kind++ {
		if at[kind].Bytes == nil {
			continue
		}
		m.kind = protowire.Number(kind)
		inside, _ := fields(at[kind].Bytes)
		if kind == requestBody || kind == responseBody {
			m.body, m.end = inside[1].Bytes, inside[2].Value != 0
			continue
		}
		m.end, m.headers = inside[3].Value != 0, make(headers, 0, 16)
		entries(inside[1].Bytes, func(key, value []byte) { m.headers = append(m.headers, [2][]byte{key, value}) })
	}
	return nil
}

// modes are how the bodies of request and response are sent.
func (m *message) modes() (request, response uint64) {
	at, _ := fields(m.config)
	return at[1].Value, at[2].Value
}

// headers are those of a request or a response. Envoy has their names in lower case, other gateways have not.
type headers [][2][]byte

// get returns the first value of a header that is not empty.
func (h headers) get(name string) string {
	for _, v := range h {
		if len(v[1]) > 0 && strings.EqualFold(string(v[0]), name) {
			return string(v[1])
		}
	}
	return ""
}

// values returns the values of a header.
func (h headers) values(name string) (all []string) {
	for _, v := range h {
		if strings.EqualFold(string(v[0]), name) {
			all = append(all, string(v[1]))
		}
	}
	return all
}

// fields are the fields of a message by number, of one that comes several times the last; whole is false if it breaks
// off.
func fields(m []byte) (at [12]protofield.Field, whole bool) {
	whole = protofield.Each(m, func(f protofield.Field) {
		if int(f.Number) < len(at) {
			at[f.Number] = f
		}
	})
	return at, whole
}

// entries calls do for the entries of a map, or of a list of headers or values, in field 1 of a message: the key is
// field 1, the value one of the next two.
func entries(m []byte, do func(key, value []byte)) {
	protofield.Each(m, func(f protofield.Field) {
		if f.Number != 1 {
			return
		}
		var key, value []byte
		protofield.Each(f.Bytes, func(f protofield.Field) {
			switch {
			case f.Number == 1:
				key = f.Bytes
			case f.Number <= 3 && len(f.Bytes) > 0:
				value = f.Bytes
			}
		})
		do(key, value)
	})
}

// entry returns the last value of a key.
func entry(m []byte, name string) (last []byte, found bool) {
	entries(m, func(key, value []byte) {
		if string(key) == name {
			last, found = value, true
		}
	})
	return last, found
}
