package extproc

import (
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/endpoint"
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
	stream extprocv3.ExternalProcessor_ProcessServer

	// How bodies are sent; without a word of the gateway as the protocol has them.
	requestMode, responseMode modev3.ProcessingMode_BodySendMode

	headers headers
	subset  []string // the only endpoints that may be picked, where restricted
	within  bool     // restricted
	body    []byte   // of the request, read and not passed on
	held    int64    // its part of Server.held
	routed  bool     // the question has been answered

	booking booking
	report  usageReader
}

// headers are those of a request or a response.
type headers []*corev3.HeaderValue

// values returns the values of a header.
func (h headers) values(name string) (all []string) {
	for _, v := range h {
		if strings.EqualFold(v.GetKey(), name) {
			all = append(all, valueOf(v))
		}
	}
	return all
}

// get returns the first value of a header, whose name is in lower case as the gateway's are.
func (h headers) get(name string) string {
	for _, v := range h {
		if v.GetKey() == name {
			return valueOf(v)
		}
	}
	return ""
}

func valueOf(v *corev3.HeaderValue) string {
	if raw := v.GetRawValue(); len(raw) > 0 {
		return string(raw)
	}
	return v.GetValue()
}

func newExchange(s *Server, stream extprocv3.ExternalProcessor_ProcessServer) *exchange {
	return &exchange{
		Server: s, stream: stream, booking: booking{host: s.host, ctx: stream.Context()},
		requestMode: modev3.ProcessingMode_FULL_DUPLEX_STREAMED, responseMode: modev3.ProcessingMode_FULL_DUPLEX_STREAMED,
	}
}

// take answers one message of the gateway.
func (x *exchange) take(m *extprocv3.ProcessingRequest) error {
	if c := m.GetProtocolConfig(); c != nil {
		x.requestMode, x.responseMode = c.GetRequestBodyMode(), c.GetResponseBodyMode()
	}
	if m.GetObservabilityMode() {
		return status.Error(codes.FailedPrecondition, "observability_mode: a pick has to be answered; unset it")
	}
	if x.requestMode == modev3.ProcessingMode_GRPC || x.responseMode == modev3.ProcessingMode_GRPC {
		return status.Error(codes.FailedPrecondition, "processing_mode: GRPC is not supported; use FULL_DUPLEX_STREAMED")
	}
	switch r := m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		return x.requestHeaders(r.RequestHeaders, m.GetMetadataContext())
	case *extprocv3.ProcessingRequest_RequestBody:
		return x.requestBody(r.RequestBody)
	case *extprocv3.ProcessingRequest_RequestTrailers:
		return x.requestTrailers()
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		return x.responseHeaders(r.ResponseHeaders, m.GetMetadataContext())
	case *extprocv3.ProcessingRequest_ResponseBody:
		return x.responseBody(r.ResponseBody)
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		return x.responseTrailers(r.ResponseTrailers)
	}
	return nil // of a kind that a later gateway has
}

func (x *exchange) requestHeaders(h *extprocv3.HttpHeaders, context *corev3.Metadata) error {
	x.headers = h.GetHeaders().GetHeaders()
	x.subset, x.within = subsetOf(context)
	if list := x.headers.get(testSelection); list != "" && x.options.ForTests {
		x.subset, x.within = split(list), true
	}
	switch x.requestMode {
	case modev3.ProcessingMode_FULL_DUPLEX_STREAMED:
		if !h.GetEndOfStream() {
			return nil // answered with the body
		}
	case modev3.ProcessingMode_BUFFERED, modev3.ProcessingMode_BUFFERED_PARTIAL:
		if !h.GetEndOfStream() {
			return x.stream.Send(requestHeadersAnswer(nil))
		}
	}
	p, err := x.pick(!h.GetEndOfStream())
	if err != nil {
		return x.refuse(err)
	}
	return x.send(requestHeadersAnswer(p), p)
}

func (x *exchange) requestBody(b *extprocv3.HttpBody) error {
	chunk, end := b.GetBody(), b.GetEndOfStream()
	if x.requestMode == modev3.ProcessingMode_FULL_DUPLEX_STREAMED {
		return x.requestChunk(chunk, end)
	}
	if x.routed {
		return x.stream.Send(requestBodyAnswer(nil))
	}
	x.body = chunk
	p, err := x.pick(!end)
	x.body = nil
	if err != nil {
		return x.refuse(err)
	}
	return x.send(requestBodyAnswer(p), p)
}

// requestChunk reads a chunk for the key until there is enough, and then answers the headers and passes on what was
// read; each chunk after that is passed on at once.
func (x *exchange) requestChunk(chunk []byte, end bool) error {
	var rest []byte
	if x.routed {
		return x.echo(requestChunkAnswer, chunk, end)
	}
	if n := x.options.MaxBody - len(x.body); n < len(chunk) {
		chunk, rest = chunk[:n], chunk[n:]
	}
	if x.body == nil {
		x.body = chunk
	} else {
		x.body = append(x.body, chunk...)
	}
	if !end && rest == nil && x.hold(len(chunk)) && !x.enough() {
		return nil
	}
	return x.answerHeaders(rest, end)
}

// hold counts bytes of a body that are held, unless there are as many as there may be.
func (x *exchange) hold(n int) bool {
	x.held += int64(n)
	return x.Server.held.Add(int64(n)) <= x.options.MaxHeld
}

// enough reports whether what was read of the body has all of the key: the first message of a gRPC call.
func (x *exchange) enough() bool {
	_, whole := firstMessage(x.body)
	return whole && x.method() != nil
}

func (x *exchange) requestTrailers() error {
	if !x.routed && x.requestMode == modev3.ProcessingMode_FULL_DUPLEX_STREAMED {
		if err := x.answerHeaders(nil, false); err != nil || !x.routed {
			return err
		}
	}
	return x.stream.Send(requestTrailersAnswer)
}

// answerHeaders picks by what was read, answers the headers, and passes the body on.
func (x *exchange) answerHeaders(rest []byte, end bool) error {
	p, err := x.pick(!end || len(rest) > 0)
	body := x.body
	x.drop()
	if err != nil {
		return x.refuse(err)
	}
	if err := x.send(requestHeadersAnswer(p), p); err != nil {
		return err
	}
	if len(body) > 0 || end && len(rest) == 0 {
		if err := x.echo(requestChunkAnswer, body, end && len(rest) == 0); err != nil {
			return err
		}
	}
	if len(rest) == 0 {
		return nil
	}
	return x.echo(requestChunkAnswer, rest, end)
}

// drop forgets the body.
func (x *exchange) drop() {
	x.Server.held.Add(-x.held)
	x.body, x.held = nil, 0
}

// method is how messages of a gRPC call are read, nil where the request is none.
func (x *exchange) method() *requestkey.Method {
	if !strings.HasPrefix(x.headers.get("content-type"), "application/grpc") {
		return nil
	}
	return x.table.Lookup(x.headers.get(":path"))
}

// pick reserves a replica by what was read of the request. Its error is a status.
func (x *exchange) pick(cut bool) (*destinations, error) {
	x.routed = true
	call := endpoint.Call{Headers: x.headers.values, Body: x.body, Cut: cut, Method: x.method()}
	if call.Method != nil {
		var whole bool
		call.Body, whole = firstMessage(x.body)
		call.Cut = !whole
	}
	q, _, err := call.Question(x.sessions)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if x.within && len(x.subset) == 0 {
		return nil, status.Error(codes.Unavailable, "the gateway allows no endpoint")
	}
	q.Deployment, q.Allowed = x.options.Deployment, x.subset
	q.Traceparent = x.headers.get("traceparent")
	if err := x.booking.reserve(call.Context(x.stream.Context()), q); err != nil {
		return nil, err
	}
	return destinationsOf(x.booking.chosen), nil
}

// send answers with a pick.
func (x *exchange) send(m *extprocv3.ProcessingResponse, p *destinations) error {
	m.DynamicMetadata = p.metadata
	x.booking.sent = true
	return x.stream.Send(m)
}

// refuse answers the client in the replica's place. The exchange is over.
func (x *exchange) refuse(err error) error {
	return x.stream.Send(refusalOf(err, x.method() != nil))
}

// echo passes a chunk on.
func (x *exchange) echo(answer func([]byte, bool) *extprocv3.ProcessingResponse, chunk []byte, end bool) error {
	for {
		n := min(len(chunk), maxChunk)
		last := n == len(chunk)
		if err := x.stream.Send(answer(chunk[:n], end && last)); err != nil || last {
			return err
		}
		chunk = chunk[n:]
	}
}

func (x *exchange) responseHeaders(h *extprocv3.HttpHeaders, context *corev3.Metadata) error {
	response := headers(h.GetHeaders().GetHeaders())
	served := servedOf(context)
	x.booking.servedAt(served)
	code := codeOf(response)
	x.booking.began(code)
	x.report = usageReader{method: x.method(), kind: kindOf(response, x.method() != nil)}
	if h.GetEndOfStream() || x.responseMode == modev3.ProcessingMode_NONE {
		x.booking.firstToken()
	}
	if h.GetEndOfStream() {
		x.booking.release(x.report.end())
	}
	if !x.options.ForTests {
		served = ""
	}
	return x.stream.Send(responseHeadersAnswer(served))
}

func (x *exchange) responseBody(b *extprocv3.HttpBody) error {
	if len(b.GetBody()) > 0 {
		x.booking.firstToken()
		x.report.add(b.GetBody())
	}
	if b.GetEndOfStream() {
		x.booking.release(x.report.end())
	}
	if x.responseMode == modev3.ProcessingMode_FULL_DUPLEX_STREAMED {
		return x.echo(responseChunkAnswer, b.GetBody(), b.GetEndOfStream())
	}
	return x.stream.Send(responseBodyAnswer)
}

func (x *exchange) responseTrailers(t *extprocv3.HttpTrailers) error {
	if code, ok := grpcStatus(t.GetTrailers().GetHeaders()); ok {
		x.booking.began(code)
	}
	x.booking.release(x.report.end())
	return x.stream.Send(responseTrailersAnswer)
}

// end gives back what the exchange holds.
func (x *exchange) end() {
	x.drop()
	x.booking.broke(x.report.end())
}

// subsetOf returns the endpoints that the gateway allows, in a list or in a string with commas between them.
func subsetOf(m *corev3.Metadata) (subset []string, restricted bool) {
	v, restricted := m.GetFilterMetadata()[subsetNamespace].GetFields()[destinationSubset]
	if !restricted {
		return nil, false
	}
	subset = split(v.GetStringValue())
	for _, v := range v.GetListValue().GetValues() {
		subset = append(subset, split(v.GetStringValue())...)
	}
	// A pick among the first ones is one of all.
	return subset[:min(len(subset), maxSubset)], true
}

// maxSubset is how many endpoints a question may allow.
const maxSubset = 1000

func split(list string) []string {
	return strings.FieldsFunc(list, func(c rune) bool { return c == ',' || c == ' ' })
}

// servedOf returns the endpoint that has served, "" where the gateway does not report it.
func servedOf(m *corev3.Metadata) string {
	return m.GetFilterMetadata()[namespace].GetFields()[destinationServed].GetStringValue()
}

// codeOf is the status of a response as a gRPC status.
func codeOf(h headers) codes.Code {
	if code, ok := grpcStatus(h); ok {
		return code
	}
	n, _ := strconv.Atoi(h.get(":status"))
	switch {
	case n < 400:
		return codes.OK
	case n == 429:
		return codes.ResourceExhausted
	case n == 502, n == 503:
		return codes.Unavailable
	case n == 504:
		return codes.DeadlineExceeded
	case n >= 500:
		return codes.Internal
	}
	return codes.InvalidArgument
}

func grpcStatus(h headers) (codes.Code, bool) {
	n, err := strconv.ParseUint(h.get("grpc-status"), 10, 32)
	return codes.Code(n), err == nil
}
