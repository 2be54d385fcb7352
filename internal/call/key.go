package call

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/router/state"
	"github.com/warmpath/warmpath/internal/telemetry"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A key is the request key of a call, and the message that it is taken from.
type key struct {
	request policy.Request
	msg     any    // until the first response message; set to nil with Call.mu held
	abort   string // the id by which the engine is to stop the request when the call is cancelled; empty = it is not to

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
	if k.msg != nil {
		m, named := b.dialect(q), q.ID != "" // by the metadata
		if err := m.Request(q, k.uses, k.msg); err != nil {
			h.warnUnread(q.Method, err)
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

// prompt returns the hash of the whole prompt with its model, adapter and salt; false where the message has none. It is
// read from the message, whatever the policy looks at.
func (k *key) prompt(b *Binding) (uint64, bool) {
	if k.msg == nil {
		return 0, false
	}
	var q policy.Request
	b.dialect(&k.request).Request(&q, policy.UsesPrompt|requestkey.WantModel, k.msg)
	seed := kvindex.SeedFor(q.Model, q.Adapter, q.CacheSalt)
	var whole [1]uint64
	hash := kvindex.AppendTokens(whole[:0], q.Prompt.Tokens, len(q.Prompt.Tokens), seed)
	if len(hash) == 0 {
		hash = kvindex.AppendText(whole[:0], q.Prompt.Text, len(q.Prompt.Text), seed)
	}
	return whole[0], len(hash) > 0
}

// A Route is what the application sets for one call through its context.
type Route struct {
	Session string
	Pin     string
	Exclude []string
	// bare is the request key of a call of which only this is known. Read only.
	bare   policy.Request
	parent string   // of the session; empty = none
	of     *Session // the session; nil = the application has given its id alone, or none
	// Report is filled with the decision of the call, where the application asked for it.
	Report *telemetry.Report
	// call is the one under way where an interceptor inside changed the route. set
	// is what was changed there and nothing else, for calls of other channels.
	call *Scope
	set  *Route
}

// ctxKey is the one context key of this package: its value is a scope, so that a picker needs a single look-up.
type ctxKey struct{}

// WithRoute returns a context with a changed copy of the route in ctx.
func WithRoute(ctx context.Context, change func(*Route)) context.Context {
	call, old := From(ctx)
	r := old.changed(change)
	if call != nil {
		r.call, r.set = call, call.Beyond(old).changed(change)
	}
	return context.WithValue(ctx, ctxKey{}, r)
}

// changed returns a changed copy of a route, which may be nil.
func (r *Route) changed(change func(*Route)) *Route {
	n := new(Route)
	if r != nil {
		*n = *r
	}
	change(n)
	n.bare = policy.Request{}
	n.apply(&n.bare)
	return n
}

// Unreported returns the route without its Report, for an attempt of which nothing becomes known.
func (r *Route) Unreported() *Route {
	if r == nil || r.Report == nil {
		return r
	}
	return r.changed(func(r *Route) { r.Report = nil })
}

// apply puts the route into a request.
func (r *Route) apply(q *policy.Request) {
	q.Session, q.Pin, q.Exclude = requestkey.Session(r.Session), r.Pin, r.Exclude
	q.SetParent(r.parent)
}

// Beyond returns what another channel takes from a route found in the context of an attempt of the call: what was set
// in that context, or nil.
func (s *Scope) Beyond(r *Route) *Route {
	if r == nil || r == s.given {
		return nil
	}
	return r.set
}

// routeOf returns the route of a call that begins on the handle's channel in the context of another one, outer, with
// the route there. It gets no Report of that call, and nothing at all of a call on another channel but what was set
// in it.
func (h *Handle) routeOf(outer *Scope, r *Route) *Route {
	switch {
	case outer.handle != h:
		return outer.Beyond(r)
	case outer.given != nil && r.Report == outer.given.Report:
		return r.changed(func(r *Route) { r.Report, r.call, r.set = nil, nil, nil })
	}
	return r
}

// blank is the request key of a call of which nothing is known or asked.
var blank policy.Request

// Bare returns the request key of a call without an interceptor, where that
// takes no look at its metadata; else nil. It is shared: read only.
func (r *Route) Bare(uses policy.Uses) *policy.Request {
	uses &^= policy.SharesByKey | policy.UsesOngoing // are not about the key
	switch {
	case r == nil && uses == 0:
		return &blank
	case r != nil && r.Report == nil && (uses == 0 || uses == policy.UsesSession && r.Session != ""):
		return &r.bare
	}
	return nil
}

// A scope is what a context has of this package: a *Route or a *Scope.
type scope interface{ scope() (*Scope, *Route) }

func (r *Route) scope() (*Scope, *Route) { return r.call, r }
func (s *Scope) scope() (*Scope, *Route) { return s, s.given }

// From returns the scope of the call in ctx, or nil, and the route, or nil. The call may be one of another channel.
func From(ctx context.Context) (*Scope, *Route) {
	if s, ok := ctx.Value(ctxKey{}).(scope); ok {
		return s.scope()
	}
	return nil, nil
}

// A requestCodec encodes the request message of a call for each attempt. It appends the patch of the attempt, such as
// its data-parallel rank. A message that can be encoded only once is kept encoded until no attempt follows: gRPC frees
// what a codec returns once that is sent, and a codec may return memory of the message itself.
type requestCodec struct {
	encoding.CodecV2
	call *Call
	msg  any  // the request message
	once bool // it can be encoded only once

	mu      sync.Mutex // guards the fields below
	encoded bool
	freed   bool
	data    mem.BufferSlice
}

// Marshal implements [encoding.CodecV2].
func (r *requestCodec) Marshal(m any) (mem.BufferSlice, error) {
	out, err := r.encode(m)
	c := r.call
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil || r.Name() != encodingproto.Name { // of another encoding the end is not known
		return out, err
	}
	if patch := c.patch(m); len(patch) > 0 {
		out = append(slices.Clip(out), mem.SliceBuffer(patch))
	}
	return out, nil
}

// encode encodes a message, which is another one where an interceptor inside sends that.
func (r *requestCodec) encode(m any) (mem.BufferSlice, error) {
	if r.once && sameMessage(m, r.msg) {
		return r.kept()
	}
	return r.CodecV2.Marshal(m)
}

// patch is what the attempt at gRPC appends to the encoded request message. Called with mu held.
func (c *Call) patch(m any) (patch []byte) {
	if c.rank != 0 {
		if d := c.reserved.binding.dialect(&c.key.request); d.TakesRank() && !d.HasRank(m) {
			patch = d.PatchRank(patch, int(c.rank)-1)
		}
	}
	if level := c.key.request.Priority; level != 0 && c.reserved.binding != nil {
		patch = c.reserved.binding.dialect(&c.key.request).PatchPriority(patch, level, m)
	}
	if c.legs != nil {
		patch = c.legs.patch(patch, c.leg)
	}
	return patch
}

// keep encodes the message, which is then encoded only once.
func (r *requestCodec) keep() error {
	r.once = true
	data, err := r.kept()
	data.Free()
	return err
}

// kept returns the message that is encoded only once.
func (r *requestCodec) kept() (mem.BufferSlice, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.freed:
		return nil, status.Error(codes.Canceled, "warmpath: the call has ended")
	case !r.encoded:
		data, err := r.CodecV2.Marshal(r.msg)
		if err != nil {
			return nil, err
		}
		r.data, r.encoded = data, true
	}
	r.data.Ref()
	return slices.Clone(r.data), nil
}

// Sends gives the request message, which is sent once for each attempt.
func (a *Attempts) Sends(msg any) {
	c := a.call
	b := c.handle.bound.Load()
	prioritized := len(metadata.ValueFromOutgoingContext(c.Context, priorityKey)) > 0 // the context is the application's
	c.mu.Lock()
	defer c.mu.Unlock()
	c.key.msg = msg
	legs := b == noBinding || b.Router.Fleet.Divided()
	if (legs || b.Resumes) && c.key.request.Answer == state.AnswerMessage && c.Resume == nil {
		c.Resume = &Resume{call: c}
	}
	if _, a.single = msg.(*grpc.PreparedMsg); a.single || a.base == nil {
		return
	}
	once := a.chosen || a.base.Name() != encodingproto.Name
	switch msg.(type) {
	case nil, proto.Message, protoadapt.MessageV1: // gRPC may encode it as often as it likes
	default:
		once = true
	}
	// A patch is appended when gRPC encodes the message, since only then the replica is certain.
	if patched := legs || b.Ranks || prioritized; !once && !patched {
		return
	}
	a.coded = true
	a.codec = &requestCodec{CodecV2: a.base, call: c, msg: msg, once: once}
	a.Each = append(slices.Clip(a.Each), grpc.ForceCodecV2(a.codec))
}

// free gives the encoded message back: no attempt follows. Called with Call.mu held.
func (a *Attempts) free() {
	if r := a.codec; r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.data.Free()
		r.freed, r.data, a.codec = true, nil, nil
	}
}

// Options are the options of a call, as its attempts and its end need them.
type Options struct {
	Each   []grpc.CallOption // of each attempt
	finish func(error)       // all OnFinish: gRPC would run them after every attempt, the application wants them once
	base   encoding.CodecV2  // what gRPC takes; nil = of an older interface, which returns bytes that gRPC does not free
	chosen bool              // an option names the codec
	Passed                   // zero where it is none of a proxy
}

// Passed is the option of a stream that a proxy passes on: it is always read to its end, so it is never abandoned.
type Passed struct {
	grpc.EmptyCallOption
	Proxied bool
	Defers  bool // the first message opens the stream, whatever its dialect asks for
}

// optionsOf splits the options of a call.
func optionsOf(opts []grpc.CallOption) Options {
	all, name := Options{Each: opts}, encodingproto.Name
	for _, o := range opts {
		switch o := o.(type) {
		case grpc.OnFinishCallOption:
			before := all
			all.finish = func(err error) { before.Finish(err); o.OnFinish(err) }
		case grpc.ForceCodecV2CallOption:
			all.base, all.chosen = o.CodecV2, true
		case grpc.ForceCodecCallOption, grpc.CustomCodecCallOption:
			all.base, all.chosen = nil, true
		case grpc.ContentSubtypeCallOption:
			name = o.ContentSubtype
		case Passed:
			all.Passed = o
		}
	}
	if !all.chosen {
		all.base = encoding.GetCodecV2(name)
	}
	if all.Finishes() {
		all.Each = slices.DeleteFunc(slices.Clone(opts), func(o grpc.CallOption) bool {
			_, ok := o.(grpc.OnFinishCallOption)
			return ok
		})
	}
	return all
}

// Finishes reports whether the application waits for the end with OnFinish.
func (o *Options) Finishes() bool { return o.finish != nil }

// Finish runs what the application gave to OnFinish.
func (o *Options) Finish(err error) {
	if o.finish != nil {
		o.finish(err)
	}
}

// sameMessage reports whether two messages are one: slices that share their memory, else values that are equal.
func sameMessage(a, b any) bool {
	v, w := reflect.ValueOf(a), reflect.ValueOf(b)
	switch {
	case !v.IsValid() || !w.IsValid() || v.Type() != w.Type():
		return v.IsValid() == w.IsValid() && !v.IsValid()
	case v.Kind() == reflect.Slice:
		return v.Pointer() == w.Pointer() && v.Len() == w.Len()
	}
	return v.Comparable() && v.Equal(w)
}

// RankMetadata returns the metadata with the data-parallel rank that was chosen for an attempt that is about to be
// sent to a replica with several. They are nil where the replica is to choose, and where the application chose, in
// the metadata or the message. The rank is written into the message, too, where its dialect has a field for it.
func (c *Call) RankMetadata(ctx context.Context) metadata.MD {
	c.mu.Lock()
	defer c.mu.Unlock()
	rank, m := c.Decision().Rank(), c.reserved.binding.dialect(&c.key.request)
	if rank < 0 || m.HasRank(c.key.msg) ||
		len(metadata.ValueFromOutgoingContext(ctx, warmpathv1.MetadataDataParallelRank)) > 0 {
		return nil
	}
	if m.TakesRank() {
		c.rank = int16(rank) + 1
	}
	return metadata.MD{warmpathv1.MetadataDataParallelRank: {strconv.Itoa(rank)}}
}
