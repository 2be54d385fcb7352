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
	whole := protofield.Each(raw, func(f protofield.Field) {
		switch f.Number {
		case requestHeaders, responseHeaders, requestBody, responseBody, requestTrailers, responseTrailers:
			m.kind = f.Number
			m.content(f.Bytes)
		case 8:
			m.metadata = f.Bytes
		case 10:
			m.observes = f.Value != 0
		case 11:
			m.config = f.Bytes
		}
	})
	if !whole {
		return status.Error(codes.InvalidArgument, "the message is no ProcessingRequest")
	}
	return nil
}

// content reads HttpHeaders, HttpBody or HttpTrailers.
func (m *message) content(raw []byte) {
	isBody := m.kind == requestBody || m.kind == responseBody
	protofield.Each(raw, func(f protofield.Field) {
		switch {
		case f.Number == 1 && isBody:
			m.body = f.Bytes
		case f.Number == 1:
			m.headers = make(headers, 0, 16)
			entries(f.Bytes, func(key, value []byte) { m.headers = append(m.headers, [2][]byte{key, value}) })
		case f.Number == 2 && isBody, f.Number == 3:
			m.end = f.Value != 0
		}
	})
}

// modes are how the bodies of request and response are sent.
func (m *message) modes() (request, response uint64) {
	protofield.Each(m.config, func(f protofield.Field) {
		switch f.Number {
		case 1:
			request = f.Value
		case 2:
			response = f.Value
		}
	})
	return request, response
}

// headers are those of a request or a response. Their names are in lower case.
type headers [][2][]byte

// get returns the first value of a header.
func (h headers) get(name string) string {
	for _, v := range h {
		if string(v[0]) == name {
			return string(v[1])
		}
	}
	return ""
}

// values returns the values of a header.
func (h headers) values(name string) (all []string) {
	name = strings.ToLower(name)
	for _, v := range h {
		if string(v[0]) == name {
			all = append(all, string(v[1]))
		}
	}
	return all
}

// entries calls do for the entries of a map, or of a list of headers, in field 1 of a message: the key is field 1, the
// value a later one.
func entries(m []byte, do func(key, value []byte)) {
	protofield.Each(m, func(f protofield.Field) {
		if f.Number != 1 {
			return
		}
		var key, value []byte
		protofield.Each(f.Bytes, func(f protofield.Field) {
			if f.Number == 1 {
				key = f.Bytes
			} else if len(f.Bytes) > 0 {
				value = f.Bytes
			}
		})
		do(key, value)
	})
}

// entry returns the first value of a key.
func entry(m []byte, name string) (first []byte, found bool) {
	entries(m, func(key, value []byte) {
		if !found && string(key) == name {
			first, found = value, true
		}
	})
	return first, found
}
