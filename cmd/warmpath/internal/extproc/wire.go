package extproc

import (
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/internal/endpoint"
	"github.com/warmpath/warmpath/internal/protofield"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
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
	none            = 0
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
		*m = message{raw: data.Materialize()}
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// A message is a ProcessingRequest: the gateway's.
type message struct {
	raw      []byte // as it came
	kind     protowire.Number
	headers  headers // or trailers; of a long head the beginning
	head     int     // bytes of headers or trailers
	body     []byte
	end      bool   // of the stream
	metadata []byte // core.v3.Metadata
	config   []byte // ProtocolConfiguration; nil = none
	observes bool   // the gateway wants no answer
}

// maxHead bounds the bytes of headers that are read, as gateways do.
const maxHead = 60 << 10

// read reads what came, which the message aliases.
func (m *message) read() error {
	at, whole := fields(m.raw)
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
		m.end, m.head, m.headers = inside[3].Value != 0, len(inside[1].Bytes), make(headers, 0, 16)
		entries(inside[1].Bytes[:min(m.head, maxHead)], func(key, value []byte) {
			m.headers = append(m.headers, [2][]byte{key, value})
		})
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

// upgrade reports whether the request turns its connection into another one, a websocket for example.
func (h headers) upgrade() bool {
	return h.get("upgrade") != "" || h.get(":method") == http.MethodConnect
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

// An answer is an encoded ProcessingResponse.
type answer mem.BufferSlice

// answerTo is the answer to a message of a kind, whose field is by one less.
func answerTo(kind protowire.Number, parts ...[]byte) answer {
	return answer{mem.SliceBuffer(field(kind-1, parts...))}
}

// field is a field that is a message, a string or bytes.
func field(n protowire.Number, parts ...[]byte) []byte {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	b := make([]byte, 0, size+2*protowire.SizeVarint(uint64(size))+2)
	b = protowire.AppendVarint(protowire.AppendTag(b, n, protowire.BytesType), uint64(size))
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

func number(n protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, n, protowire.VarintType), v)
}

// set replaces a header, also one that the client has sent: an entry of HeaderMutation.
func set(name, value string) []byte {
	const overwrite = 2 // OVERWRITE_IF_EXISTS_OR_ADD
	return field(1, field(1, field(1, []byte(name)), field(3, []byte(value))), number(3, overwrite))
}

// destinations returns the address of a pick and of so many of its fallbacks, and the metadata that has them.
func destinations(a *warmpathv1.ChooseReplicaResponse, fallbacks uint32) (all string, metadata []byte) {
	all = a.GetReplica().GetAddress()
	for _, r := range a.GetFallbacks()[:min(int(fallbacks), len(a.GetFallbacks()))] {
		all += "," + r.GetAddress()
	}
	inside := field(5, // a Value that is a Struct
		entryOf(destination, all), entryOf(pickedReplica, a.GetReplica().GetId()), entryOf(pickedReason, a.GetDecision().GetReason()))
	return all, field(8, field(1, field(1, []byte(namespace)), field(2, inside)))
}

// entryOf is an entry of a Struct.
func entryOf(key, value string) []byte {
	return field(1, field(1, []byte(key)), field(2, field(3, []byte(value))))
}

// picked answers headers or a buffered body with a pick, the same in a header and in the metadata.
func picked(kind protowire.Number, a *warmpathv1.ChooseReplicaResponse, all string, metadata []byte) answer {
	mutation := set(destination, all)
	if r := a.GetReplica(); r.Rank != nil {
		mutation = append(mutation, set(warmpathv1.MetadataDataParallelRank, strconv.Itoa(int(r.GetRank())))...)
	}
	const clearRouteCache = 5
	common := field(1, field(2, mutation), number(clearRouteCache, 1))
	return answer{mem.SliceBuffer(append(field(kind-1, common), metadata...))}
}

// echo answers a message in the mode FULL_DUPLEX_STREAMED with a chunk of its body, which is not copied.
func echo(kind protowire.Number, chunk []byte, end bool) answer {
	var inside []byte // StreamedBodyResponse, but for the chunk
	if end {
		inside = number(2, 1)
	}
	inside = protowire.AppendVarint(protowire.AppendTag(inside, 1, protowire.BytesType), uint64(len(chunk)))
	for _, n := range [...]protowire.Number{3, 3, 1, kind - 1} { // BodyMutation, CommonResponse, BodyResponse
		b := protowire.AppendTag(make([]byte, 0, 48), n, protowire.BytesType)
		inside = append(protowire.AppendVarint(b, uint64(len(inside)+len(chunk))), inside...)
	}
	return answer{mem.SliceBuffer(inside), mem.SliceBuffer(chunk)}
}

// refusal answers the client in the replica's place: 503 if no replica is eligible, 429 if all are full.
func refusal(err error, isGRPC bool) answer {
	r, more := endpoint.RefusalOf(err), []byte(nil)
	if status.Code(err) == codes.ResourceExhausted {
		r.Code = http.StatusTooManyRequests
	}
	if after := endpoint.RetryAfter(err); after != "" {
		more = set("retry-after", after)
	}
	return refused(r, status.Convert(err), isGRPC, more)
}

// tooLong refuses a request whose headers are longer than maxHead.
func tooLong(isGRPC bool) answer {
	return refused(endpoint.Refusal{Code: http.StatusRequestHeaderFieldsTooLarge, Reason: "headers_too_long"},
		status.Newf(codes.ResourceExhausted, "the headers are longer than %d bytes", maxHead), isGRPC, nil)
}

// refused is a refusal with more headers. A client of gRPC gets its status.
func refused(r endpoint.Refusal, s *status.Status, isGRPC bool, more []byte) answer {
	code, message := s.Code(), s.Message()
	mutation := append(set(strings.ToLower(endpoint.HeaderReason), r.Reason), more...)
	rest := field(3, []byte(message)) // with gRPC in a header
	if isGRPC {
		rest = append(rest, field(4, number(1, uint64(code)))...)
	} else {
		mutation = append(mutation, set("content-type", "application/json")...)
		rest = field(3, r.JSON(message))
	}
	const immediate = 7
	return answer{mem.SliceBuffer(field(immediate,
		field(1, number(1, uint64(r.Code))), field(2, mutation), rest, field(5, []byte("warmpath_"+r.Reason))))}
}
