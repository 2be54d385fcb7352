package httpendpoint

import (
	"encoding/json"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Headers of an answer.
const (
	// HeaderReason is the decision's reason, or of a refusal its reason.
	HeaderReason = "X-Warmpath-Reason"
	// HeaderBody is the [BodyState].
	HeaderBody = "X-Warmpath-Body"
)

// A refusal is the HTTP status of an error, and its reason: one word.
type refusal struct {
	code   int
	reason string
}

var (
	badRequest   = refusal{http.StatusBadRequest, "invalid_request"}
	unknownPath  = refusal{http.StatusNotFound, "unknown_path"}
	wrongMethod  = refusal{http.StatusMethodNotAllowed, "method_not_allowed"}
	noAddress    = refusal{http.StatusServiceUnavailable, "no_address"} // the replica has no host and port
	shuttingDown = refusal{http.StatusServiceUnavailable, "shutting_down"}
	tooMany      = refusal{http.StatusTooManyRequests, "too_many_requests"} // more than the principal may
	internal     = refusal{http.StatusInternalServerError, "internal"}
)

// refusals by gRPC status; every other one is internal.
var refusals = map[codes.Code]refusal{
	codes.InvalidArgument:   badRequest,
	codes.NotFound:          {http.StatusNotFound, "unknown_model"}, // or the deployment
	codes.Unavailable:       {http.StatusServiceUnavailable, "no_replica"},
	codes.ResourceExhausted: {http.StatusServiceUnavailable, "full"},
	codes.Unauthenticated:   {http.StatusUnauthorized, "unauthenticated"},
	codes.PermissionDenied:  {http.StatusForbidden, "forbidden"},
	codes.Canceled:          {http.StatusServiceUnavailable, "canceled"},
	codes.DeadlineExceeded:  {http.StatusServiceUnavailable, "canceled"},
}

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
	r, found := refusals[s.Code()]
	if !found {
		r = internal
	}
	r.write(w, s.Message())
}

// write answers with the refusal, in OpenAI's form.
func (r refusal) write(w http.ResponseWriter, message string) {
	w.Header().Set(HeaderReason, r.reason)
	kind := "invalid_request_error"
	if r.code >= http.StatusInternalServerError {
		kind = "server_error"
	}
	write(w, r.code, map[string]any{
		"error": map[string]any{"message": strings.ToValidUTF8(message, "?"), "type": kind, "code": r.reason},
	})
}

// Destination is where to send the request. Its JSON is flat but for the headers.
type Destination struct {
	ReplicaID  string `json:"replica_id"`
	Host       string `json:"host"`
	Port       int    `json:"port"`
	Deployment string `json:"deployment,omitempty"`
	// Truncated: the pick rests on the beginning of the body only.
	Truncated bool `json:"truncated,omitempty"`
	// RequestHeaders are to be sent along with the request.
	RequestHeaders map[string]string `json:"request_headers,omitempty"`
}

func write(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // fails only on a connection that is gone
}
