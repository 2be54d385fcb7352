package extproc

import (
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/internal/endpoint"
	"github.com/warmpath/warmpath/internal/requestkey"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// The names of the protocol.
const (
	destination       = "x-gateway-destination-endpoint"
	destinationServed = "x-gateway-destination-endpoint-served"
	destinationSubset = "x-gateway-destination-endpoint-subset"
	namespace         = "envoy.lb"
	pickedReplica     = "x-warmpath-replica" // the id
	pickedReason      = "x-warmpath-reason"
	subsetNamespace   = "envoy.lb.subset_hint"
	// testSelection lists the endpoints that a conformance test allows, testServed reports the one that has served.
	testSelection = "test-epp-endpoint-selection"
	testServed    = "x-conformance-test-served-endpoint"
)

// An exchange is one HTTP request with its response. One goroutine uses it.
type exchange struct {
	*Server
	stream grpc.ServerStream

	gateway          // as far as it is known; until it reports its modes, those of the protocol
	reported bool    // the gateway has reported its modes
	begun    bool    // a message of the request has come
	skipped  bool    // the request began with its body or its trailers
	headers  headers // of the request, until it is routed
	reading  endpoint.Reading
	method   *requestkey.Method // how messages of a gRPC call are read; nil = the request is none
	subset   []string           // the only endpoints that may be picked, where restricted
	within   bool               // restricted
	body     []byte             // of the request, read and not passed on
	held     int64              // its part of Server.held
	routed   bool               // the question has been answered
	picks    []byte             // the metadata of the pick, for the next answer
	asked    bool               // all of the request has come
	shown    bool               // a message of the response has come
	let      bool               // the gateway goes on without the picker

	reservation reservation
	report      usageReader
	id          idReader
}

// take answers one message of the gateway.
func (x *exchange) take(m *message) error {
	if m.config != nil {
		x.requestMode, x.responseMode = m.modes()
		x.reported = true
	}
	if m.observes || x.requestMode >= grpcMessages || x.responseMode >= grpcMessages {
		return status.Error(codes.FailedPrecondition,
			"processing_mode: use FULL_DUPLEX_STREAMED, not GRPC; observability_mode: unset it, a pick has to be answered")
	}
	x.asked = x.asked || m.kind == requestTrailers || m.end && (m.kind == requestHeaders || m.kind == requestBody)
	switch m.kind {
	case requestHeaders:
		return x.requestHeaders(m)
	case requestBody:
		return x.requestBody(m)
	case requestTrailers:
		return x.requestTrailers(m)
	case responseHeaders, responseBody, responseTrailers:
		if !x.begun {
			return status.Error(codes.InvalidArgument, "processing_mode: a response came without its request")
		}
		return x.response(m)
	}
	return nil // of a kind that a later gateway has
}

// begin reads how the request is to be read, and where it may go.
func (x *exchange) begin(m *message) {
	x.begun, x.headers = true, m.headers
	x.reading = x.host.Reading(x.stream.Context(), x.options.Deployment, "")
	if strings.HasPrefix(x.headers.get("content-type"), "application/grpc") {
		x.method = x.reading.Dialects.Lookup(x.headers.get(":path"))
	}
	x.subset, x.within = subsetOf(m.metadata)
	if list := x.headers.get(testSelection); list != "" && x.options.ForTests {
		x.subset, x.within = split(list), true
	}
}

func (x *exchange) requestHeaders(m *message) error {
	switch {
	case x.begun:
		return status.Error(codes.InvalidArgument, "a stream is one request: its headers came twice, or after its body")
	case m.head > maxHead:
		x.begun, x.routed = true, true
		return x.stream.SendMsg(tooLong(strings.HasPrefix(m.headers.get("content-type"), "application/grpc")))
	}
	x.begin(m)
	full := x.hold(m.head)
	switch {
	case m.end, full, x.headers.upgrade(): // a body may never end, or does not count
	case x.requestMode == duplex: // answered with the body
		return nil
	case x.requestMode == buffered, x.requestMode == bufferedPartial: // the body comes after the answer
		return x.stream.SendMsg(answerTo(m.kind))
	}
	return x.pick(requestHeaders, !m.end)
}

// hold counts bytes that are held of the request. It reports whether all requests together have too many.
func (x *exchange) hold(n int) (full bool) {
	x.held += int64(n)
	return x.Server.held.Add(int64(n)) > x.options.MaxHeld
}

// requestBody reads a chunk for the key until there is enough, and then answers the headers and passes on what was
// read; each chunk after that is passed on at once.
func (x *exchange) requestBody(m *message) error {
	if !x.begun { // the gateway does not show the headers
		x.begin(m)
		x.skipped = true
	}
	switch {
	case x.routed && x.requestMode == duplex:
		return x.echo(m)
	case x.routed:
		return x.stream.SendMsg(answerTo(m.kind))
	case x.requestMode != duplex: // it is all that comes
		x.body = m.body[:min(len(m.body), x.options.MaxBody)]
		return x.pick(requestBody, !m.end || len(x.body) < len(m.body))
	}
	n := min(len(m.body), x.options.MaxBody-len(x.body))
	if x.body == nil {
		x.body = m.body[:n:n]
	} else {
		x.body = append(x.body, m.body[:n]...)
	}
	_, _, whole := firstMessage(x.body)
	enough := whole && x.method != nil // the first message of a gRPC call has all of the key
	if full := x.hold(n); !full && n == len(m.body) && !enough && !m.end {
		return nil
	}
	return x.answerHeaders(m.body[n:], m.end)
}

// requestTrailers ends a request that is not routed yet.
func (x *exchange) requestTrailers(m *message) error {
	if !x.begun {
		x.begin(&message{})
		x.skipped = true
	}
	if !x.routed {
		x.skipped = x.skipped || x.requestMode != duplex // the headers were answered
		if err := x.answerHeaders(nil, false); err != nil || !x.reservation.sent {
			return err
		}
	}
	return x.stream.SendMsg(x.withPick(answerTo(m.kind)))
}

// answerHeaders picks by what was read, answers the headers, and passes the body on, with the rest of the last chunk.
func (x *exchange) answerHeaders(rest []byte, end bool) error {
	body := x.body
	err := x.pick(requestHeaders, !end || len(rest) > 0)
	if err == nil && x.reservation.sent && len(rest) > 0 {
		err = x.echo(&message{kind: requestBody, body: body})
		body = rest
	}
	if err != nil || !x.reservation.sent || len(body) == 0 && !end {
		return err
	}
	return x.echo(&message{kind: requestBody, body: body, end: end})
}

// drop forgets what was read of the request.
func (x *exchange) drop() {
	x.Server.held.Add(-x.held)
	x.headers, x.body, x.held = nil, nil, 0
}

// pick reserves a replica by what was read of the request, and answers a message of a kind with it, or the client with
// the refusal: the exchange is over then. If the headers cannot be answered, the next answer has the pick.
func (x *exchange) pick(kind protowire.Number, cut bool) error {
	x.routed = true
	err := x.reserve(cut)
	x.drop()
	if err != nil {
		return x.stream.SendMsg(refusal(err, x.method != nil))
	}
	x.reservation.sent = true
	all, metadata := destinations(x.reservation.chosen, x.options.Fallbacks)
	if kind == requestHeaders && x.skipped {
		x.picks = metadata
		return nil
	}
	return x.stream.SendMsg(picked(kind, x.reservation.chosen, all, metadata))
}

// withPick adds the pick to an answer, once, if it is not answered yet.
func (x *exchange) withPick(a answer) answer {
	if x.picks != nil {
		a = append(a, mem.SliceBuffer(x.picks))
		x.picks = nil
	}
	return a
}

// reserve asks for a replica. Its error is a status.
func (x *exchange) reserve(cut bool) error {
	call := endpoint.Call{Headers: x.headers.values, Body: x.body, Cut: cut, Method: x.method}
	if call.Method != nil {
		var whole bool
		call.Body, _, whole = firstMessage(x.body)
		call.Cut = !whole
	}
	q, state, err := call.Question(x.sessionKeys)
	switch {
	case err != nil:
		return status.Error(codes.InvalidArgument, err.Error())
	case x.within && len(x.subset) == 0:
		return status.Error(codes.Unavailable, "the gateway allows no endpoint")
	}
	q.Deployment, q.Allowed, q.MaxFallbacks = x.options.Deployment, x.subset, x.options.Fallbacks
	q.Traceparent = x.headers.get("traceparent")
	ctx := call.Context(x.stream.Context())
	x.id.reads = x.method == nil && isResponses(x.headers.get(":path"))
	_, err = x.holders.Choose(&call, q, func() (*warmpathv1.ChooseReplicaResponse, error) {
		if q.Deployment != "" || q.GetKey().GetModel() != "" || state != endpoint.BodyNone {
			err := x.reservation.reserve(ctx, q)
			return x.reservation.chosen, err
		}
		// It asks for no model: a list of models, for example, which any deployment may answer.
		err := status.Error(codes.Unavailable, "there is no deployment")
		for _, q.Deployment = range x.host.Deployments(ctx) {
			if err = x.reservation.reserve(ctx, q); err == nil {
				break
			}
		}
		return x.reservation.chosen, err
	})
	return err
}

// sessionKeys are those of the model's deployment.
func (x *exchange) sessionKeys(model string) *requestkey.SessionKeys {
	if model == "" || x.options.Deployment != "" {
		return x.reading.Sessions
	}
	return x.host.Reading(x.stream.Context(), "", model).Sessions
}

// echo passes a chunk on.
func (x *exchange) echo(m *message) error {
	chunk := m.body
	for ; len(chunk) > maxChunk; chunk = chunk[maxChunk:] {
		if err := x.stream.SendMsg(x.withPick(echo(m.kind, chunk[:maxChunk], false))); err != nil {
			return err
		}
	}
	return x.stream.SendMsg(x.withPick(echo(m.kind, chunk, m.end)))
}

// response takes a message of the response. At its end the reservation is released.
func (x *exchange) response(m *message) error {
	if !x.shown {
		x.shown = true
		x.Server.learn(x.gateway)
	}
	a := answerTo(m.kind)
	over := m.end || m.kind == responseTrailers
	switch m.kind {
	case responseHeaders:
		served := servedOf(m.metadata)
		x.reservation.servedAt(served)
		x.reservation.code = codeOf(m.headers, x.reservation.code)
		x.report.begin(m.headers, x.method)
		x.id.reads = x.id.reads && x.report.reads && x.reservation.code == codes.OK
		if x.responseMode == none {
			x.reservation.firstToken(m.end)
			over = over || x.reservation.code != codes.OK
		}
		if served != "" && x.options.ForTests {
			a = answerTo(m.kind, field(1, field(2, set(testServed, served))))
		}
	case responseBody:
		if len(m.body) > 0 {
			x.reservation.firstToken(m.end)
			x.report.add(m.body)
			if id := x.id.add(m.body); x.reservation.chosen != nil {
				x.holders.Put(id, x.reservation.chosen.GetReplica().GetId())
			}
		}
	case responseTrailers:
		x.reservation.code = codeOf(m.headers, x.reservation.code)
	}
	if over {
		x.reservation.release(x.report.end())
	}
	if m.kind == responseBody && x.responseMode == duplex {
		return x.echo(m)
	}
	return x.stream.SendMsg(a)
}

// mayLeave reports whether the gateway goes on without the picker, and loses nothing, if the stream ends now with
// status OK. In the mode FULL_DUPLEX_STREAMED it would lose the chunks that it has sent and not got back.
func (x *exchange) mayLeave() bool {
	return x.routed && (x.asked || x.requestMode != duplex) && x.responseMode != duplex
}

// end takes the end of the stream, whoever ended it, and gives back what the exchange holds. Whether the request has
// ended with it is concluded from what the gateway has shown.
func (x *exchange) end() {
	x.drop()
	shows := x.reported && x.responseMode != none // the body, at least
	switch {
	case x.reservation.chosen == nil:
	case x.let:
		x.reservation.unseen()
	case shows, !x.shown && x.Server.knows(x.gateway): // the response has not come to its end
		x.reservation.broke(x.report.end())
	case x.requestMode == duplex: // such a stream ends with what the gateway shows
		x.reservation.unseen()
	case x.shown:
		x.reservation.release(nil)
	default: // the stream was as long as the request, whose outcome is not known
		x.reservation.forget()
	}
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

// servedOf returns the endpoint that has served, "" where the gateway does not report it.
func servedOf(metadata []byte) string {
	v, _ := entry(metadata, namespace)
	v, _ = entry(v, destinationServed)
	return strings.Join(textsOf(v), "")
}

// textsOf returns the strings of a google.protobuf.Value: it, or those in its list.
func textsOf(value []byte) []string {
	at, _ := fields(value)
	all := []string{string(at[3].Bytes)}
	entries(at[6].Bytes, func(_, text []byte) { all = append(all, string(text)) })
	return all
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(c rune) bool { return c == ',' || c == ' ' })
}

// codeOf is the status of a response as a gRPC status, and before where it has none.
func codeOf(h headers, before codes.Code) codes.Code {
	if n, err := strconv.ParseUint(h.get("grpc-status"), 10, 32); err == nil {
		return codes.Code(n)
	}
	switch n, _ := strconv.Atoi(h.get(":status")); {
	case n == http.StatusTooManyRequests:
		return codes.ResourceExhausted
	case n == http.StatusGatewayTimeout:
		return codes.DeadlineExceeded
	case n >= http.StatusInternalServerError:
		return codes.Unavailable
	case n >= http.StatusBadRequest:
		return codes.InvalidArgument
	case n > 0:
		return codes.OK
	}
	return before
}
