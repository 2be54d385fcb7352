package httpendpoint

import (
	"bytes"
	"io"
	"net/http"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/requestkey"
)

// BodyState is the value of [HeaderBody]: how much of the body of a request was used.
type BodyState string

// The states.
const (
	bodyNone       BodyState = "none"       // there is none
	bodyWhole      BodyState = "whole"      // all of it
	BodyTruncated  BodyState = "truncated"  // its beginning: the rest did not arrive, or is beyond the bound
	bodyUnreadable BodyState = "unreadable" // nothing: it is no JSON object
)

type body struct {
	state BodyState
	raw   []byte
}

// read reads the body up to max_body_bytes, as far as it arrives in time.
func (h *handler) read(r *http.Request) body {
	raw, err := io.ReadAll(io.LimitReader(r.Body, int64(h.maxBody)+1))
	b := body{bodyWhole, raw}
	if len(raw) > h.maxBody {
		b = body{BodyTruncated, raw[:h.maxBody]}
	}
	switch {
	case err != nil, len(raw) > 0 && r.Header.Get(HeaderTruncated) != "":
		b.state = BodyTruncated
	case len(raw) == 0:
		b.state = bodyNone
	}
	return b
}

// decode fills q from the body, and sets its state.
func (b *body) decode(q *policy.Request) error {
	if b.state == bodyNone {
		return nil
	}
	if start := bytes.TrimLeft(b.raw, " \t\r\n"); len(start) > 0 && start[0] != '{' {
		b.state = bodyUnreadable
		return nil
	}
	whole, err := requestkey.ReadBody(q, b.raw)
	if !whole {
		b.state = BodyTruncated
	}
	return err
}
