package httpendpoint

import (
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/endpoint"
)

// Headers of an answer.
const (
	// HeaderReason is the decision's reason, or of a refusal its reason.
	HeaderReason = endpoint.HeaderReason
	// HeaderBody is the [endpoint.BodyState].
	HeaderBody = "X-Warmpath-Body"
)

// A refusal is an error as an answer.
type refusal endpoint.Refusal

var (
	badRequest   = refusal{http.StatusBadRequest, "invalid_request"}
	unknownPath  = refusal{http.StatusNotFound, "unknown_path"}
	wrongMethod  = refusal{http.StatusMethodNotAllowed, "method_not_allowed"}
	noAddress    = refusal{http.StatusServiceUnavailable, "no_address"} // the replica has no host and port
	shuttingDown = refusal{http.StatusServiceUnavailable, "shutting_down"}
	tooMany      = refusal{http.StatusTooManyRequests, "too_many_requests"} // more than the principal may
)

// Deny answers a request that did not pass the interceptors: its error is a status.
func Deny(w http.ResponseWriter, err error) {
	if s := status.Convert(err); s.Code() == codes.ResourceExhausted {
		tooMany.write(w, s.Message())
		return
	}
	refuse(w, err)
}

// refuse answers with the HTTP equivalent of a gRPC status.
func refuse(w http.ResponseWriter, err error) {
	s := status.Convert(err)
	switch s.Code() {
	case codes.ResourceExhausted:
		w.Header().Set("Retry-After", "1")
	case codes.Unauthenticated:
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	refusal(endpoint.RefusalOf(err)).write(w, s.Message())
}

// write answers with the refusal, in OpenAI's form.
func (r refusal) write(w http.ResponseWriter, message string) {
	w.Header().Set(HeaderReason, r.Reason)
	write(w, r.Code, endpoint.Refusal(r).JSON(message))
}

// Destination is where to send the request. Its JSON is flat but for the headers and the prefill leg.
type Destination struct {
	ReplicaID  string `json:"replica_id"`
	Host       string `json:"host"`
	Port       int    `json:"port"`
	Deployment string `json:"deployment,omitempty"`
	// Truncated: the pick rests on the beginning of the body only.
	Truncated bool `json:"truncated,omitempty"`
	// RequestHeaders are to be sent along with the request.
	RequestHeaders map[string]string `json:"request_headers,omitempty"`
	// Prefill is the replica that prefills the request, where it is sent in two legs; nil = it is not. It alone has what
	// follows: where its KV blocks are asked for, and its name in transfers.
	Prefill     *Destination `json:"prefill,omitempty"`
	KVBootstrap string       `json:"kv_bootstrap,omitempty"`
	KVEngineID  string       `json:"kv_engine_id,omitempty"`
}

func write(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = w.Write(body) // fails only on a connection that is gone
}
