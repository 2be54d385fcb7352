package endpoint

import (
	"bytes"
	"cmp"
	"context"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/router/part"
	routerstate "github.com/warmpath/warmpath/internal/router/state"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A Call is a request for a model, as far as a front end has read it.
type Call struct {
	// Headers returns the values of a header, whose name is in lower case.
	Headers func(name string) []string
	// Body is its body, or the first message of a gRPC call.
	Body []byte
	// Cut: there is more of the body.
	Cut bool
	// Method reads the messages of a gRPC call; nil = the body is an OpenAI request.
	Method *requestkey.Method
	// Ongoing is what the caller tells of its requests; nil = nothing.
	Ongoing *Ongoing
}

// BodyState is how much of the body of a request was used.
type BodyState string

// The states.
const (
	BodyNone       BodyState = "none"       // there is none
	BodyWhole      BodyState = "whole"      // all of it
	BodyTruncated  BodyState = "truncated"  // its beginning: the rest did not arrive, or is beyond the bound
	BodyUnreadable BodyState = "unreadable" // nothing: it is no JSON object
)

// Question is the request for a replica, without a deployment and a mode. Its prompt aliases the body. A session in a
// header, by the keys of a model's deployment, comes before one in the body; nil = headers have none.
func (c *Call) Question(keysOf func(model string) *requestkey.SessionKeys) (*warmpathv1.ChooseReplicaRequest, BodyState, error) {
	var k policy.Request
	if ids := c.Headers("x-request-id"); len(ids) > 0 {
		k.ID = routerstate.SessionKey(ids[0])
	}
	state, err := c.read(&k)
	if inBody := k.Session; keysOf != nil {
		keysOf(k.Model).In(c.Headers, &k)
		k.Session = cmp.Or(k.Session, inBody)
	}
	key := &warmpathv1.RequestKey{
		RequestId: routerstate.SessionKey(k.ID), Session: k.Session,
		ParentSession: k.Parent(), SessionFinal: part.OfRequest(&k).Final, Model: k.Model, Adapter: k.Adapter, CacheSalt: k.CacheSalt,
	}
	switch p := &k.Prompt; {
	case len(p.Tokens) > 0:
		key.Prompt = &warmpathv1.RequestKey_TokenIds{TokenIds: &warmpathv1.TokenIds{Ids: p.Tokens}}
	case p.Text != "":
		key.Prompt = &warmpathv1.RequestKey_Text{Text: p.Text}
	}
	return &warmpathv1.ChooseReplicaRequest{Key: key}, state, err
}

// read fills the key from the body.
func (c *Call) read(k *policy.Request) (BodyState, error) {
	start := bytes.TrimLeft(c.Body, " \t\r\n")
	switch {
	case len(c.Body) == 0 && !c.Cut:
		return BodyNone, nil
	case c.Method != nil:
		// A chat that cannot be read has no prompt.
		_ = c.Method.Request(k, policy.UsesPrompt|policy.UsesSession|requestkey.WantModel, c.Body)
		if c.Cut {
			return BodyTruncated, nil
		}
		return BodyWhole, nil
	case len(start) > 0 && start[0] != '{':
		return BodyUnreadable, nil
	}
	whole, err := requestkey.ReadBody(k, c.Body)
	if whole && !c.Cut {
		return BodyWhole, err
	}
	return BodyTruncated, err
}

// Message implements state.Origin: the body as far as it was read.
func (c *Call) Message() any {
	if len(c.Body) == 0 {
		return nil
	}
	return c.Body
}

// Header implements state.Origin.
func (c *Call) Header(key string) []string { return c.Headers(key) }

type callKey struct{}

// Context is a context in which the server finds the call that a replica is picked for.
func (c *Call) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// Origin returns the call that a pick was asked for, nil where it was asked otherwise.
func Origin(ctx context.Context) routerstate.Origin {
	if c, ok := ctx.Value(callKey{}).(*Call); ok {
		return c
	}
	return nil
}
