package httpendpoint

import (
	"encoding/json"
	"net/http"
	"strings"
)

// Headers of an answer.
const (
	// HeaderReason is the decision's reason, or of a refusal one of the reasons below.
	HeaderReason = "X-Warmpath-Reason"
	// HeaderBody is the [BodyState].
	HeaderBody = "X-Warmpath-Body"
)

// Reasons of refusals.
const (
	reasonRequest         = "invalid_request" // 400
	reasonUnknown         = "unknown_model"   // 404: the deployment or the model
	reasonPath            = "unknown_path"    // 404
	reasonMethod          = "method_not_allowed"
	reasonNoReplica       = "no_replica"        // 503
	reasonFull            = "full"              // 503
	reasonAddress         = "no_address"        // 503: the replica has no host and port
	reasonShuttingDown    = "shutting_down"     // 503
	reasonCanceled        = "canceled"          // 503
	reasonUnauthenticated = "unauthenticated"   // 401
	reasonForbidden       = "forbidden"         // 403
	reasonTooMany         = "too_many_requests" // 429: more than the principal may
	reasonInternal        = "internal"          // 500
)

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

// refuse answers with an error, in OpenAI's form. The reason is one word.
func refuse(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set(HeaderReason, reason)
	kind := "invalid_request_error"
	if code >= http.StatusInternalServerError {
		kind = "server_error"
	}
	write(w, code, map[string]any{
		"error": map[string]any{"message": strings.ToValidUTF8(message, "?"), "type": kind, "code": reason},
	})
}

func write(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // fails only on a connection that is gone
}
