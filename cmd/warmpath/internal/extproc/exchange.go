package extproc

import (
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/internal/endpoint"
	"github.com/warmpath/warmpath/internal/protofield"
	"github.com/warmpath/warmpath/internal/requestkey"
)

// The names of the protocol.
const (
	destination       = "x-gateway-destination-endpoint"
	destinationServed = "x-gateway-destination-endpoint-served"
	destinationSubset = "x-gateway-destination-endpoint-subset"
	namespace         = "envoy.lb"
	subsetNamespace   = "envoy.lb.subset_hint"
	// testSelection lists the endpoints that a conformance test allows, testServed reports the one that has served.
	testSelection = "test-epp-endpoint-selection"
	testServed    = "x-conformance-test-served-endpoint"
)

// An exchange is one HTTP request with its response. One goroutine uses it.
type exchange struct {
	*Server
	stream grpc.ServerStream

	// How bodies are sent; where the gateway does not report it as the protocol has them.
	requestMode, responseMode uint64

	headers headers
	method  *requestkey.Method // how messages of a gRPC call are read; nil = the request is none
	subset  []string           // the only endpoints that may be picked, where restricted
	within  bool               // restricted
	body    []byte             // of the request, read and not passed on
	held    int64              // its part of Server.held
	routed  bool               // the question has been answered

	booking booking
	report  usageReader
}

// take answers one message of the gateway.
func (x *exchange) take(m *message) error {
	if m.config != nil {
		x.requestMode, x.responseMode = m.modes()
	}
	if m.observes {
		return status.Error(codes.FailedPrecondition, "observability_mode: a pick has to be answered; unset it")
	}
	if x.requestMode >= grpcMessages || x.responseMode >= grpcMessages {
		return status.Error(codes.FailedPrecondition, "processing_mode: use FULL_DUPLEX_STREAMED, not GRPC")
	}
	switch m.kind {
	case requestHeaders:
		return x.requestHeaders(m)
	case requestBody:
		return x.requestBody(m)
	case requestTrailers:
		if !x.routed && x.requestMode == duplex {
			if err := x.answerHeaders(nil, false); err != nil || !x.booking.sent {
				return err
			}
		}
	case responseHeaders:
		return x.responseHeaders(m)
	case responseBody:
		return x.responseBody(m)
	case responseTrailers:
		x.booking.status(m.headers)
		x.booking.release(x.report.end())
	default:
		return nil // of a kind that a later gateway has
	}
	return x.stream.SendMsg(answerTo(m.kind))
}

func (x *exchange) requestHeaders(m *message) error {
	x.headers = m.headers
	if strings.HasPrefix(m.headers.get("content-type"), "application/grpc") {
		x.method = x.table.Lookup(m.headers.get(":path"))
	}
	x.subset, x.within = subsetOf(m.metadata)
	if list := m.headers.get(testSelection); list != "" && x.options.ForTests {
		x.subset, x.within = split(list), true
	}
	switch x.requestMode {
	case duplex: // answered with the body
		if !m.end {
			return nil
		}
	case buffered, bufferedPartial: // the body comes after the answer
		if !m.end {
			return x.stream.SendMsg(answerTo(m.kind))
		}
	}
	return x.pick(requestHeaders, !m.end)
}

func (x *exchange) requestBody(m *message) error {
	switch {
	case x.requestMode == duplex:
		return x.requestChunk(m.body, m.end)
	case x.routed:
		return x.stream.SendMsg(answerTo(m.kind))
	}
	x.body = m.body
	defer x.drop()
	return x.pick(requestBody, !m.end)
}

// requestChunk reads a chunk for the key until there is enough, and then answers the headers and passes on what was
// read; each chunk after that is passed on at once.
func (x *exchange) requestChunk(chunk []byte, end bool) error {
	if x.routed {
		return x.echo(requestBody, chunk, end)
	}
	n := min(len(chunk), x.options.MaxBody-len(x.body))
	if x.body == nil {
		x.body = chunk[:n:n]
	} else {
		x.body = append(x.body, chunk[:n]...)
	}
	if !end && n == len(chunk) && x.hold(n) && !x.enough() {
		return nil
	}
	return x.answerHeaders(chunk[n:], end)
}

// hold counts bytes of a body that are held, unless there are as many as there may be.
func (x *exchange) hold(n int) bool {
	x.held += int64(n)
	return x.Server.held.Add(int64(n)) <= x.options.MaxHeld
}

// enough reports whether what was read of the body has all of the key: the first message of a gRPC call.
func (x *exchange) enough() bool {
	_, whole := firstMessage(x.body)
	return whole && x.method != nil
}

// answerHeaders picks by what was read, answers the headers, and passes the body on, with the rest of the last chunk.
func (x *exchange) answerHeaders(rest []byte, end bool) error {
	body := x.body
	err := x.pick(requestHeaders, !end || len(rest) > 0)
	x.drop()
	if err != nil || !x.booking.sent {
		return err
	}
	if len(rest) > 0 {
		if err := x.echo(requestBody, body, false); err != nil {
			return err
		}
		body = rest
	}
	if len(body) == 0 && !end {
		return nil
	}
	return x.echo(requestBody, body, end)
}

// drop forgets the body.
func (x *exchange) drop() {
	x.Server.held.Add(-x.held)
	x.body, x.held = nil, 0
}

// pick reserves a replica by what was read of the request, and answers a message of a kind with it, or the client with
// the refusal: the exchange is over then.
func (x *exchange) pick(kind protowire.Number, cut bool) error {
	x.routed = true
	if err := x.reserve(cut); err != nil {
		return x.stream.SendMsg(refusal(err, x.method != nil))
	}
	x.booking.sent = true
	return x.stream.SendMsg(picked(kind, x.booking.chosen))
}

// reserve asks for a replica. Its error is a status.
func (x *exchange) reserve(cut bool) error {
	call := endpoint.Call{Headers: x.headers.values, Body: x.body, Cut: cut, Method: x.method}
	if call.Method != nil {
		var whole bool
		call.Body, whole = firstMessage(x.body)
		call.Cut = !whole
	}
	q, _, err := call.Question(x.sessions)
	switch {
	case err != nil:
		return status.Error(codes.InvalidArgument, err.Error())
	case x.within && len(x.subset) == 0:
		return status.Error(codes.Unavailable, "the gateway allows no endpoint")
	}
	q.Deployment, q.Allowed = x.options.Deployment, x.subset
	q.Traceparent = x.headers.get("traceparent")
	return x.booking.reserve(call.Context(x.stream.Context()), q)
}

// echo passes a chunk on.
func (x *exchange) echo(kind protowire.Number, chunk []byte, end bool) error {
	for len(chunk) > maxChunk {
		if err := x.stream.SendMsg(echo(kind, chunk[:maxChunk], false)); err != nil {
			return err
		}
		chunk = chunk[maxChunk:]
	}
	return x.stream.SendMsg(echo(kind, chunk, end))
}

func (x *exchange) responseHeaders(m *message) error {
	v, _ := entry(m.metadata, namespace)
	served := ""
	if v, found := entry(v, destinationServed); found {
		served = strings.Join(textsOf(v), "")
	}
	x.booking.servedAt(served)
	x.booking.status(m.headers)
	x.report.begin(m.headers, x.method)
	if x.responseMode == 0 && !m.end { // the body is not sent
		x.booking.firstToken()
	}
	if m.end {
		x.booking.release(x.report.end())
	}
	if served == "" || !x.options.ForTests {
		return x.stream.SendMsg(answerTo(m.kind))
	}
	return x.stream.SendMsg(answerTo(m.kind, field(1, field(2, set(testServed, served)))))
}

func (x *exchange) responseBody(m *message) error {
	if len(m.body) > 0 {
		x.booking.firstToken()
		x.report.add(m.body)
	}
	if m.end {
		x.booking.release(x.report.end())
	}
	if x.responseMode == duplex {
		return x.echo(m.kind, m.body, m.end)
	}
	return x.stream.SendMsg(answerTo(m.kind))
}

// end gives back what the exchange holds.
func (x *exchange) end() {
	x.drop()
	x.booking.broke(x.report.end())
}

// maxSubset is how many endpoints a question may allow. A pick among the first ones is one of all.
const maxSubset = 1000

// subsetOf returns the endpoints that the gateway allows, in a list or in a string with commas between them.
func subsetOf(metadata []byte) (subset []string, restricted bool) {
	hint, _ := entry(metadata, subsetNamespace)
	v, restricted := entry(hint, destinationSubset)
	for _, list := range textsOf(v) {
		subset = append(subset, split(list)...)
	}
	return subset[:min(len(subset), maxSubset)], restricted
}

// textsOf returns the strings of a google.protobuf.Value: it, or those in its list.
func textsOf(value []byte) (all []string) {
	protofield.Each(value, func(f protofield.Field) {
		switch f.Number {
		case 3:
			all = append(all, string(f.Bytes))
		case 6:
			entries(f.Bytes, func(key, text []byte) { all = append(all, string(text)) })
		}
	})
	return all
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(c rune) bool { return c == ',' || c == ' ' })
}

// codeOf is the status of a response, as a gRPC status; found is false in trailers without one.
func codeOf(h headers) (code codes.Code, found bool) {
	if n, err := strconv.ParseUint(h.get("grpc-status"), 10, 32); err == nil {
		return codes.Code(n), true
	}
	n, err := strconv.Atoi(h.get(":status"))
	switch {
	case n == http.StatusTooManyRequests:
		code = codes.ResourceExhausted
	case n == http.StatusBadGateway, n == http.StatusServiceUnavailable:
		code = codes.Unavailable
	case n == http.StatusGatewayTimeout:
		code = codes.DeadlineExceeded
	case n >= http.StatusInternalServerError:
		code = codes.Internal
	case n >= http.StatusBadRequest:
		code = codes.InvalidArgument
	}
	return code, err == nil
}
