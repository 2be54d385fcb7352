package extproc

import (
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/internal/endpoint"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

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

// picked answers headers or a buffered body with a pick and so many of its fallbacks, the same in a header and in the
// metadata.
func picked(kind protowire.Number, a *warmpathv1.ChooseReplicaResponse, fallbacks uint32) answer {
	all := a.GetReplica().GetAddress()
	for _, r := range a.GetFallbacks()[:min(int(fallbacks), len(a.GetFallbacks()))] {
		all += "," + r.GetAddress()
	}
	mutation := set(destination, all)
	if r := a.GetReplica(); r.Rank != nil {
		mutation = append(mutation, set(warmpathv1.MetadataDataParallelRank, strconv.Itoa(int(r.GetRank())))...)
	}
	const clearRouteCache = 5
	common := field(1, field(2, mutation), number(clearRouteCache, 1))
	inside := field(5, field(1, field(1, []byte(destination)), field(2, field(3, []byte(all))))) // a Value that is a Struct
	metadata := field(8, field(1, field(1, []byte(namespace)), field(2, inside)))
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

// refusal answers the client in the replica's place: 503 if no replica is eligible, 429 if all are full. A client of
// gRPC gets its status.
func refusal(err error, isGRPC bool) answer {
	code, r, message := status.Code(err), endpoint.RefusalOf(err), status.Convert(err).Message()
	mutation := set(strings.ToLower(endpoint.HeaderReason), r.Reason)
	if code == codes.ResourceExhausted {
		r.Code = http.StatusTooManyRequests
		mutation = append(mutation, set("retry-after", "1")...)
	}
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
