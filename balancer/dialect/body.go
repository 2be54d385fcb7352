package dialect

import (
	"errors"

	"github.com/warmpath/warmpath/balancer/routing"
)

// ErrModel says that a body names a model by something else than a string.
var ErrModel = errors.New("model: it must be a string")

// ReadBody fills q from the body of an OpenAI request (chat, completion, embedding). What the host has set stays, so a
// session from a header comes before one in the body; a model "base:adapter" is left as it is. Of a body that ends early
// it takes what there is: the prompt is then a prefix of the whole one, and whole is false, as it is for what is no JSON
// object. The prompt aliases the body. The only error is [ErrModel]. Safe for concurrent use.
func ReadBody(q *routing.Request, raw []byte) (whole bool, err error) {
	b := readBody(raw)
	if b.oddModel {
		return b.whole, ErrModel
	}
	b.fill(q, true, true)
	return b.whole, nil
}
