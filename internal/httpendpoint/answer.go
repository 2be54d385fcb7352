package httpendpoint

import (
	"encoding/json"
	"net/http"
	"strings"
)

// Headers of an answer.
const (
	// HeaderReason says why: of a refusal one of the reasons below, else the decision's.
	HeaderReason = "X-Warmpath-Reason"
	// HeaderBody says what became of the body: a [BodyState].
	HeaderBody = "X-Warmpath-Body"
)

// Why a question was refused.
const (
	ReasonRequest         = "invalid_request" // 400
	ReasonUnknown         = "unknown_model"   // 404: the deployment or the model
	ReasonPath            = "unknown_path"    // 404
	ReasonMethod          = "method_not_allowed"
	ReasonNoReplica       = "no_replica"        // 503
	ReasonFull            = "full"              // 503
	ReasonAddress         = "no_address"        // 503: the replica has no host and port
	ReasonShuttingDown    = "shutting_down"     // 503
	ReasonCanceled        = "canceled"          // 503
	ReasonUnauthenticated = "unauthenticated"   // 401
	ReasonForbidden       = "forbidden"         // 403
	ReasonTooMany         = "too_many_requests" // 429: more than this caller may
	ReasonInternal        = "internal"          // 500
)

// Destination is where to send the request. Its JSON is flat but for the headers.
type Destination struct {
	ReplicaID  string `json:"replica_id"`
	Host       string `json:"host"`
	Port       int    `json:"port"`
	Deployment string `json:"deployment,omitempty"`
	// Truncated says that the pick rests on the beginning of the body only.
	Truncated bool `json:"truncated,omitempty"`
	// RequestHeaders are to be sent along with the request.
	RequestHeaders map[string]string `json:"request_headers,omitempty"`
}

// Refuse answers with an error, in OpenAI's form. The reason is one word.
func Refuse(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set(HeaderReason, reason)
	kind := "invalid_request_error"
	if code >= http.StatusInternalServerError {
		kind = "server_error"
	}
	write(w, code, map[string]any{"error": map[string]any{"message": strings.ToValidUTF8(message, "?"), "type": kind, "code": reason}})
}

func write(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // the caller has gone if this fails
}
