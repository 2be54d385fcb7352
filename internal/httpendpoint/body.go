package httpendpoint

import (
	"bytes"
	"io"
	"net/http"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
)

// BodyState is what became of the body of a question, as [HeaderBody] tells it.
type BodyState string

// The states.
const (
	BodyNone       BodyState = "none"       // there was none
	BodyWhole      BodyState = "whole"      // all of it was read
	BodyTruncated  BodyState = "truncated"  // only its beginning arrived, or was read
	BodyUnreadable BodyState = "unreadable" // it is no JSON object, and was not looked at
)

type body struct {
	state BodyState
	raw   []byte
}

// read takes as much of the body as comes in time and is allowed.
func (h *handler) read(r *http.Request) body {
	raw, err := io.ReadAll(io.LimitReader(r.Body, int64(h.maxBody)+1))
	b := body{BodyWhole, raw}
	if len(raw) > h.maxBody {
		b = body{BodyTruncated, raw[:h.maxBody]}
	}
	switch {
	case err != nil, len(raw) > 0 && r.Header.Get(HeaderTruncated) != "":
		b.state = BodyTruncated
	case len(raw) == 0:
		b.state = BodyNone
	}
	return b
}

// decode fills q from the body, and finds out what it is worth.
func (b *body) decode(q *policy.Request) error {
	if b.state == BodyNone {
		return nil
	}
	if start := bytes.TrimLeft(b.raw, " \t\r\n"); len(start) > 0 && start[0] != '{' {
		b.state = BodyUnreadable
		return nil
	}
	whole, err := dialect.ReadBody(q, b.raw)
	if !whole {
		b.state = BodyTruncated
	}
	return err
}
