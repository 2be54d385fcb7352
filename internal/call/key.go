package call

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/requestkey"
)

// A key is the request key of a call, and the message that it is taken from.
type key struct {
	request policy.Request
	msg     any                // until the first response message; set to nil with Call.mu held
	method  *requestkey.Method // how messages are read; set once the key was filled
	abort   string             // the id by which the engine is to stop the request when the call is cancelled; empty = it is not to

	uses    policy.Uses // what was taken
	filled  bool
	refused bool // for want of a prompt
}

// fill takes the request key from the message and the metadata, once.
func (k *key) fill(ctx context.Context, h *Handle, b *Binding, r *Route) {
	if k.filled && k.uses&b.Uses == b.Uses {
		return
	}
	q := &k.request
	k.filled, k.uses = true, k.uses|b.Uses
	b.ReadMetadata(ctx, r, q)
	k.method = b.dialect(q)
	if k.msg != nil {
		m, named := k.method, q.ID != "" // by the metadata
		model, adapter := q.Model, q.Adapter
		if err := m.Request(q, k.uses, k.msg); err != nil {
			h.warnUnread(q.Method, err)
		}
		if model == "" && m.JoinsModel() {
			b.Router.SplitModel(q)
			q.Adapter = cmp.Or(adapter, q.Adapter)
		}
		if k.abort = ""; m.Abort() != "" {
			if k.abort = q.ID; named {
				k.abort = m.RequestID(k.msg)
			}
		}
	}
	if q.Session == "" && q.Prompt.Empty() && b.Uses&policy.UsesSession != 0 && b.SessionKeys != nil {
		b.SessionKeys.Agent(ctx, q)
	}
}

// dialect is how the messages of a request's method are read.
func (b *Binding) dialect(q *policy.Request) *requestkey.Method { return b.Dialects.Lookup(q.Method) }

// priorityKey is the metadata key of a call's priority in the queue, and priorities are its values.
const priorityKey = "x-warmpath-priority"

var priorities = map[string]int{"low": -1, "normal": 0, "high": 1}

// ReadMetadata takes what the request key has from the context and its metadata. A request without a session has its id
// as the key, unless the prompt is.
func (b *Binding) ReadMetadata(ctx context.Context, r *Route, q *policy.Request) {
	if r != nil {
		r.apply(q)
	}
	if b.Uses&policy.UsesSession != 0 && q.Session == "" && b.SessionKeys != nil {
		q.Session = b.SessionKeys.Outgoing(ctx)
		if q.Session == "" && b.Uses&policy.UsesPrompt == 0 {
			q.ID = requestkey.RequestID(ctx)
		}
	}
	q.Priority = 0
	for _, s := range metadata.ValueFromOutgoingContext(ctx, priorityKey) {
		if p, ok := priorities[s]; ok {
			q.Priority = p
			return
		}
	}
}

// errNoPrompt is the picker's error where a prompt is required and the call has none. gRPC does not let a picker return
// INVALID_ARGUMENT: the interceptor does.
var errNoPrompt = errors.New("the call has no prompt, and require_prompt is set")

// promptless are services that have no prompts and are called on any channel.
var promptless = []string{"/grpc.health.v1.", "/grpc.reflection."}

// keyless reports whether the method is of such a service.
func keyless(method string) bool {
	return slices.ContainsFunc(promptless, func(service string) bool { return strings.HasPrefix(method, service) })
}

// lacksPrompt reports whether the call is refused because it has no prompt. Calls of health and reflection never are,
// nor those of methods whose dialect has none.
func (k *key) lacksPrompt(b *Binding) bool {
	if !b.NeedsPrompt || k.request.PromptTokens > 0 || keyless(k.request.Method) {
		return false
	}
	k.refused = b.dialect(&k.request).HasPrompt()
	return k.refused
}

// refusal is the status of a call without a prompt.
func (k *key) refusal() error {
	return status.Errorf(codes.InvalidArgument, "warmpath: require_prompt is set, and the request of %s has no prompt: "+
		"send one, or name in dialects the field of the method's prompt; "+
		"a method that never has one needs a dialect without prompt",
		k.request.Method)
}
