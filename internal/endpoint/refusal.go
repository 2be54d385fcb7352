package endpoint

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// HeaderReason has the decision's reason, or of a refusal its reason.
const HeaderReason = "X-Warmpath-Reason"

// A Refusal is the HTTP status of an error, and its reason: one word.
type Refusal struct {
	Code   int
	Reason string
}

// refusals by gRPC status; every other one is internal.
var refusals = map[codes.Code]Refusal{
	codes.InvalidArgument:   {http.StatusBadRequest, "invalid_request"},
	codes.NotFound:          {http.StatusNotFound, "unknown_model"}, // or the deployment
	codes.Unavailable:       {http.StatusServiceUnavailable, "no_replica"},
	codes.ResourceExhausted: {http.StatusServiceUnavailable, "full"},
	codes.Unauthenticated:   {http.StatusUnauthorized, "unauthenticated"},
	codes.PermissionDenied:  {http.StatusForbidden, "forbidden"},
	codes.Canceled:          {http.StatusServiceUnavailable, "canceled"},
	codes.DeadlineExceeded:  {http.StatusServiceUnavailable, "canceled"},
}

// RefusalOf returns the HTTP equivalent of a gRPC status.
func RefusalOf(err error) Refusal {
	if r, found := refusals[status.Code(err)]; found {
		return r
	}
	return Refusal{http.StatusInternalServerError, "internal"}
}

// JSON is the refusal in OpenAI's form.
func (r Refusal) JSON(message string) []byte {
	kind := "invalid_request_error"
	switch {
	case r.Code == http.StatusTooManyRequests:
		kind = "rate_limit_error"
	case r.Code >= http.StatusInternalServerError:
		kind = "server_error"
	}
	return JSON(map[string]any{
		"error": map[string]any{"message": strings.ToValidUTF8(message, "?"), "type": kind, "code": r.Reason},
	})
}

// JSON is a value as the body of an answer.
func JSON(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // what is answered can be encoded
	return b.Bytes()
}
